"""What `explain` tells those who may not read everything, and where there is nothing to be told."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from controlplane import ControlPlane
from controlplane.process import free_ports

from tests.apiserver.explain.conftest import Team
from tests.binder import environment
from tests.explaining import Explained, explain
from tests.proxy import Answer, Hang, Proxy, Refuse, Rule

ROOT = Path(__file__).parents[3]
ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/{}"
REQUESTS = {"apiGroups": ["scheduling.run.ai"], "resources": ["bindrequests"], "verbs": ["get", "list"]}
PODS = {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["get", "list"]}
CLAIMS = {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get"]}


def user(team: Team, *rules: dict[str, list[str]]) -> Path:
    """Credentials of somebody who may do this in the namespace, and nothing else; its context is in it."""
    plane, namespace = team.cluster.plane, team.cluster.namespace
    role = {"metadata": {"name": "user"}, "rules": list(rules)}
    plane.request("POST", ROLES.format(namespace, "roles"), role)
    binding = {
        "metadata": {"name": "user"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "user"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
    }
    plane.request("POST", ROLES.format(namespace, "rolebindings"), binding)
    return plane.service_account_kubeconfig(namespace, "default")


def reader(team: Team, namespace: str) -> None:
    """Has the default account of a namespace see all that the admin sees."""
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    name = f"reader-{team.cluster.namespace}"
    body = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
    path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    team.cluster.plane.request("POST", path, body)


def failed_share(team: Team) -> str:
    """A pod whose share of a GPU could not be bound, as its status says; no binder runs here."""
    node, group = team.node(), team.group()
    team.cluster.share("train", node, group, pod={"spec": {"volumes": [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    ]}})  # fmt: skip
    message = "reservation pod x reported no GPU within 40 s"
    failed = {"status": "False", "reason": "ReservationTimeout", "message": message, "observedGeneration": 1}
    moment = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    conditions = [{"type": type_, **failed, **moment} for type_ in ("GPUReserved", "Bound")]
    status = {"phase": "Failed", "failedAttempts": 1, "reason": message, "conditions": conditions}
    team.cluster.patch_status("train", status)
    return node


def assert_cannot_tell(told: Explained, *texts: str) -> None:
    assert (told.code, told.out) == (2, ""), told
    assert told.err.startswith("kai-binder: ")
    assert told.err.count("\n") == 1
    for text in texts:
        assert text in told.err, told.err


def test_a_user_of_one_namespace(team: Team) -> None:
    node = failed_share(team)
    kubeconfig = user(team, REQUESTS, PODS, CLAIMS)
    told = explain(kubeconfig, "train")
    assert told.code == 1
    assert told.err == ""
    assert "GPUReserved failed with ReservationTimeout" in told.out
    answer = explain(kubeconfig, "train", "-o", "json").json
    asked = sorted(sentence.partition(": ")[0] for sentence in answer["missing"])
    assert asked == [
        "may not list bindrequests in all namespaces",
        "may not list pods in kai-resource-reservation",
        "may not read leases kai-scheduler/2ad35f9c.kai.scheduler",
        f"may not read nodes {node}",
    ]
    assert all("cannot" in sentence for sentence in answer["missing"])
    assert "its reservation may not be read" in told.out
    assert "cannot tell: the Lease may not be read" in told.out
    assert [claim["state"] for claim in answer["claims"]] == ["does not exist"]
    assert [item["reason"] for item in answer["advice"]] == ["ReservationTimeout"]


def test_a_user_who_may_read_requests_only(team: Team) -> None:
    failed_share(team)
    kubeconfig = user(team, REQUESTS)
    told = explain(kubeconfig, "train", "-o", "json")
    assert told.code == 1
    pod = told.json["pod"]
    assert (pod["isKnown"], pod["exists"]) == (False, False)
    assert any(sentence.startswith("may not read pods ") for sentence in told.json["missing"])
    assert "is not bound: GPUReserved failed" in told.json["summary"]


def test_a_user_who_may_read_pods_only(team: Team) -> None:
    team.cluster.pod("train")
    kubeconfig = user(team, PODS)
    told = explain(kubeconfig, "train", "-o", "json")
    assert told.code == 1
    assert told.json["summary"].endswith("is not bound, and its BindRequest may not be read.")
    assert told.json["advice"] == []
    team.cluster.bind_by_hand("train", team.node())
    assert explain(kubeconfig, "train").code == 0


def test_a_user_without_rights(team: Team) -> None:
    failed_share(team)
    told = explain(user(team), "train")
    assert_cannot_tell(told, "may not read pods", "may not list bindrequests", "forbidden")


def test_nothing_of_this_name(team: Team) -> None:
    namespace = team.cluster.namespace
    assert_cannot_tell(team.explain("train"), f"there is neither a pod nor a BindRequest {namespace}/train")
    for kind, text in (("pod", "no pod"), ("br", "no BindRequest")):
        told = explain(team.kubeconfig, f"{kind}/train", "-n", namespace)
        assert_cannot_tell(told, f"there is {text} {namespace}/train")
    assert_cannot_tell(explain(team.kubeconfig, "a/b/c/d"), "is no name of a pod or BindRequest")
    assert_cannot_tell(explain(team.kubeconfig, "a/b", "-n", "c"), "--namespace says c")
    assert_cannot_tell(explain(team.kubeconfig), "the following arguments are required")


def test_a_pod_that_the_scheduler_has_not_decided_on(team: Team) -> None:
    team.cluster.pod("train")
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "no node fits",
    }
    team.cluster.patch_pod_status("train", {"conditions": [condition]})
    told = team.check("undecided")
    assert told.json["request"] is None
    assert [item["reason"] for item in told.json["advice"]] == ["NoRequest"]


def test_a_request_that_no_binder_has_taken_up(team: Team) -> None:
    team.cluster.pod_and_request("train", team.node())
    answer = team.answer("train")
    assert answer["summary"].endswith("the binder has not said anything of the request yet.")
    assert answer["leader"] == {
        "leads": None, "text": "cannot tell: there is no Lease; one replica without --leader-elect has none"
    }  # fmt: skip


def test_a_request_of_another_name_and_a_pod_of_its_name(team: Team) -> None:
    node = team.node()
    team.cluster.ask("train-x", node, owner=team.cluster.pod("train"), podName="train")
    team.cluster.pod("train-x")
    answer = team.answer("train-x")
    assert answer["request"]["name"] == "train-x"
    assert answer["pod"]["name"] == "train"
    assert "explain pod/train-x" in answer["notes"][0]
    told = explain(team.kubeconfig, "pod/train-x", "-n", team.cluster.namespace, "-o", "json")
    assert told.json["request"] is None
    assert team.answer("train")["request"]["name"] == "train-x"


def test_the_longest_names(team: Team) -> None:
    longest = ".".join(["n" * 40] * 7)[:253]
    team.cluster.ask(longest, longest, owner=team.cluster.pod(longest))
    told = team.explain(longest, columns=40)
    assert told.code == 1
    assert max(map(len, told.out.splitlines())) <= 40
    assert longest in "".join(told.out.split())


def test_a_server_that_is_away(team: Team, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    text = team.kubeconfig.read_text().replace(team.cluster.plane.url, f"https://127.0.0.1:{port}")
    kubeconfig = tmp_path / "away"
    kubeconfig.write_text(text)
    began_s = time.monotonic()
    told = explain(kubeconfig, "team/train", "--timeout=2")
    assert time.monotonic() - began_s < 5
    assert_cannot_tell(told, "the API server cannot be asked (GET bindrequests team/train)", "connect")


def test_credentials_that_are_not_accepted(team: Team, control_plane: ControlPlane, tmp_path: Path) -> None:
    token = control_plane.token("kai-scheduler", "binder")
    text = control_plane.service_account_kubeconfig("kai-scheduler", "binder").read_text()
    kubeconfig = tmp_path / "stranger"
    kubeconfig.write_text(text.replace(token.partition(".")[0], "nobody"))
    told = explain(kubeconfig, "team/train", "--timeout=3")
    assert_cannot_tell(told, "the API server does not accept the credentials")
    assert_cannot_tell(explain(tmp_path / "missing", "team/train"), "does not exist")
    told = explain(team.kubeconfig, "team/train", "--context=other")
    assert_cannot_tell(told, "there is no context of the name that was asked for")


def test_few_requests_and_none_that_writes(team: Team, proxy: Proxy, control_plane: ControlPlane) -> None:
    failed_share(team)
    reader(team, "kube-system")
    kubeconfig = proxy.kubeconfig(control_plane.token("kube-system", "default"))
    assert explain(kubeconfig, f"{team.cluster.namespace}/train").code == 1
    assert {call.method for call in proxy.calls} == {"GET"}
    assert len(proxy.calls) <= 10, [str(call) for call in proxy.calls]


@pytest.mark.parametrize("action", [Answer(500), Refuse(), Hang()], ids=["fails", "breaks", "hangs"])
def test_a_server_that_answers_some_requests_only(
    team: Team, proxy: Proxy, control_plane: ControlPlane, action: Answer | Refuse | Hang
) -> None:
    node = failed_share(team)
    reader(team, "kube-system")
    kubeconfig = proxy.kubeconfig(control_plane.token("kube-system", "default"))
    with proxy.rule(Rule(action, path=f"/nodes/{node}")):
        told = explain(kubeconfig, f"{team.cluster.namespace}/train", "-o", "json", "--timeout=1")
    assert told.code == 1
    (sentence,) = told.json["missing"]
    assert sentence.startswith(f"could not read nodes {node}: ")
    assert told.json["advice"]


def test_as_a_command(team: Team) -> None:
    failed_share(team)
    done = subprocess.run(
        [sys.executable, "-m", "controller", "explain", f"{team.cluster.namespace}/train"],
        cwd=ROOT,
        env={**environment(), "KUBECONFIG": str(team.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "\x1b" not in done.stdout
    assert "ReservationTimeout" in done.stdout
