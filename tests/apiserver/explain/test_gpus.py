"""`kai-binder gpus` on a real API server: who is on which GPU, as several users may see it."""

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from controlplane import ControlPlane

from controller.explain.command import main
from tests.binder import ROOT, Binders, environment
from tests.limits import ENABLED, IN_MAP, Limits
from tests.polling import wait_until
from tests.proxy import Proxy
from tests.sharing import RESERVATION_PODS, RESERVATIONS, Agents, PodOptions

DOCS = ROOT / "docs/gpus.md"
LABELS = {"nvidia.com/gpu.memory": "40960", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}
READER = "gpus-reader"


@dataclass(frozen=True, slots=True)
class Shown:
    """How a run has ended."""

    code: int
    out: str
    err: str

    @property
    def node(self) -> dict[str, Any]:
        """The one node of a JSON document."""
        (found,) = json.loads(self.out)["nodes"]
        return dict(found)

    @property
    def gpu(self) -> dict[str, Any]:
        """The one shared GPU of that."""
        (found,) = self.node["shared"]
        return dict(found)


def gpus(kubeconfig: Path, *args: str, columns: int = 100) -> Shown:
    """Runs it, with a kubeconfig as the only environment."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["gpus", *args, f"--kubeconfig={kubeconfig}"], {"COLUMNS": str(columns)})
    return Shown(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def limiting(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A binder that limits memory."""
    kubeconfig = control_plane.service_account_kubeconfig("kai-scheduler", "binder")
    made = Binders(tmp_path_factory.mktemp("binder"), kubeconfig)
    try:
        made.start(env=ENABLED)
        yield
        made.close()
    finally:
        made.kill()


@pytest.fixture
def cluster(control_plane: ControlPlane, agents: Agents, limiting: None) -> Limits:
    """A fresh namespace."""
    return Limits.beside(control_plane, agents)


@pytest.fixture
def admin(control_plane: ControlPlane) -> Path:
    return control_plane.admin_kubeconfig


def make_node(
    cluster: Limits,
    name: str = "",
    labels: dict[str, str] | None = None,
    amounts: dict[str, str] | None = None,
) -> str:
    """A node of two GPUs, or of these amounts."""
    name = name or f"gpus-{uuid4().hex[:10]}"
    whole = amounts or {"nvidia.com/gpu": "2"}
    body = {
        "metadata": {"name": name, "labels": labels or LABELS},
        "status": {"capacity": whole, "allocatable": whole},
    }
    cluster.plane.request("POST", "/api/v1/nodes", body)
    return name


def share(cluster: Limits, name: str, node: str, group: str) -> None:
    """A pod with half a GPU and a limit; bound."""
    cluster.limited(name, node, group)
    cluster.wait_for(name, "Succeeded")


def reader(cluster: Limits, *rules: tuple[str, str], everywhere: bool = True) -> Path:
    """The kubeconfig of an account of the namespace that may read these kinds (API group, plural)."""
    namespace, kind = cluster.namespace, "ClusterRole" if everywhere else "Role"
    where = "" if everywhere else f"/namespaces/{namespace}"
    rights, plane = f"/apis/rbac.authorization.k8s.io/v1{where}", cluster.plane
    plane.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": READER}})
    written = [
        {"apiGroups": [group], "resources": [plural], "verbs": ["get", "list"]} for group, plural in rules
    ]
    name = {"name": f"{READER}-{namespace}"}
    plane.request("POST", f"{rights}/{kind.lower()}s", {"metadata": name, "rules": written})
    subject = {"kind": "ServiceAccount", "namespace": namespace, "name": READER}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, **name}
    binding = {"metadata": name, "roleRef": role, "subjects": [subject]}
    plane.request("POST", f"{rights}/{kind.lower()}bindings", binding)
    return plane.service_account_kubeconfig(namespace, READER)


def block(name: str, real: str) -> str:
    """The output that the docs show under this name; the real one is written there if that is asked for."""
    pattern = rf"(<!-- output: {name} -->\n```\w+\n)(.*?)(```\n)"
    if os.environ.get("GPUS_DOCS") == "write":
        whole = DOCS.read_text()
        DOCS.write_text(re.sub(pattern, lambda old: f"{old[1]}{real}{old[3]}", whole, flags=re.DOTALL))
    found = re.search(pattern, DOCS.read_text(), re.DOTALL)
    assert found is not None, name
    return found[2]


class TestDocs:
    """One node with all that can be there, as docs/gpus.md shows it."""

    @pytest.fixture
    def shown_node(self, cluster: Limits, control_plane: ControlPlane, agents: Agents) -> Iterator[str]:
        node = make_node(cluster, "gpu-node-7", amounts={"nvidia.com/gpu": "4", "nvidia.com/mig-1g.5gb": "7"})
        made = []
        asked: tuple[tuple[str, str, PodOptions], ...] = (
            ("team-a", "0.50", {"fraction": "0.5", "in_map": IN_MAP}),
            ("team-b", "0.20", {"fraction": None, "memory": "8192", "in_map": IN_MAP}),
        )
        for namespace, portion, options in asked:
            name = {"team-a": "train-0", "team-b": "infer-0"}[namespace]
            control_plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
            wait_until(lambda namespace=namespace: self.account_of(control_plane, namespace))  # type: ignore[misc]
            team = Limits(control_plane, namespace)
            made.append(team)
            team.share(name, node, "8f1d2c3b-6f0e-4a51-9c37-d0a4be5d1f20", pod=options, portion=portion)
            team.wait_for(name, "Succeeded")
            team.set_phase(name, "Running")
        made[0].pod("train-1", limits={"nvidia.com/gpu": "2"}, nodeName=node)
        made[1].pod("notebook", limits={"nvidia.com/mig-1g.5gb": "3"}, nodeName=node)
        yield node
        for team in made:
            control_plane.request("DELETE", f"{team.pods}?gracePeriodSeconds=0")
            control_plane.request("DELETE", f"/api/v1/namespaces/{team.namespace}")
        control_plane.request("DELETE", f"/api/v1/nodes/{node}")

    @staticmethod
    def account_of(plane: ControlPlane, namespace: str) -> bool:
        found = plane.request("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts")["items"]
        return any(item["metadata"]["name"] == "default" for item in found)

    def test_the_outputs_are_real(self, shown_node: str, admin: Path) -> None:
        whole = gpus(admin, shown_node)
        assert whole.code == 0, whole
        assert whole.out == block("node", whole.out)
        narrowed = gpus(admin, shown_node, "--namespace=team-b", "--ascii").out
        assert narrowed == block("namespace", narrowed)
        document = gpus(admin, shown_node, "-o", "json").out
        assert json.loads(document) == json.loads(block("json", document))
        narrow = gpus(admin, shown_node, columns=40).out
        assert "team-a/train-0" in narrow
        assert gpus(admin).out.count("\ngpu-node-7  ") + gpus(admin).out.startswith("gpu-node-7  ") == 1


class TestWhatIsWrong:
    def test_two_pods_share_a_gpu_and_nothing_is(self, cluster: Limits, admin: Path) -> None:
        node, group = make_node(cluster), cluster.group()
        for name in ("a", "b"):
            share(cluster, name, node, group)
        shown = gpus(admin, node, "-o", "json")
        assert shown.code == 0, shown
        gpu = shown.gpu
        assert gpu["device"] == cluster.device(group)
        assert (gpu["portion"], gpu["memoryMiB"], gpu["problems"]) == (1.0, 40960, [])
        assert [(pod["pod"], pod["memoryMiB"], pod["limit"]) for pod in gpu["pods"]] == [
            (f"{cluster.namespace}/{name}", 20480, {"source": "ConfigMap", "memoryMiB": 20480})
            for name in ("a", "b")
        ]

    def test_a_reservation_without_users(self, cluster: Limits, admin: Path) -> None:
        node, name = make_node(cluster), f"nobody-{uuid4().hex[:8]}"
        cluster.make_reservation(name, node, cluster.group(), device="GPU-5")
        path = f"{RESERVATION_PODS}/{name}"
        cluster.hold(path)  # the binder removes it after a while
        shown = gpus(admin, node)
        cluster.let_go(path)
        assert shown.code == 1
        text = " ".join(shown.out.split())
        assert f"! UnusedReservation: reservation pod {RESERVATIONS}/{name} holds a GPU for nobody" in text

    def test_pods_that_pass_the_card_and_have_no_reservation(self, cluster: Limits, admin: Path) -> None:
        node, group = make_node(cluster), cluster.group()
        labels, spec = {"runai-gpu-group": group}, {"nodeName": node}
        for name in ("a", "b", "c"):
            cluster.shared_pod(name, labels=labels, spec=spec)
        shown = gpus(admin, node, "-o", "json")
        assert shown.code == 1
        problems = [problem["reason"] for problem in shown.gpu["problems"]]
        assert (problems, shown.gpu["portion"]) == (["NoReservation", "OverCommitted"], 1.5)
        assert shown.gpu["reservation"] is None

    def test_a_label_that_lies(self, cluster: Limits, admin: Path) -> None:
        node = make_node(cluster, labels={"nvidia.com/gpu.memory": "plenty"})
        shown = gpus(admin, node)
        assert shown.code == 1
        assert f"label nvidia.com/gpu.memory of node {node} is 'plenty'" in " ".join(shown.out.split())

    def test_ended_pods_and_those_of_others_do_not_count(self, cluster: Limits, admin: Path) -> None:
        node = make_node(cluster)
        cluster.pod("ended", limits={"nvidia.com/gpu": "1"}, nodeName=node)
        cluster.set_phase("ended", "Succeeded")
        cluster.pod("cpu", nodeName=node)
        shown = gpus(admin, node, "-o", "json")
        assert (shown.code, shown.node["gpus"]["free"], shown.node["whole"]) == (0, 2, [])


class TestRights:
    def test_who_may_read_nothing_is_told_what(self, cluster: Limits) -> None:
        shown = gpus(reader(cluster))
        assert (shown.code, shown.out) == (2, "")
        assert "may not list pods in all namespaces" in shown.err
        assert f"may not list pods in {cluster.namespace}" in shown.err
        assert f"may not list pods in {RESERVATIONS}" in shown.err

    def test_who_may_read_own_pods_only_sees_these(self, cluster: Limits) -> None:
        node, group = make_node(cluster), cluster.group()
        share(cluster, "mine", node, group)
        shown = gpus(reader(cluster, ("", "pods"), everywhere=False), node)
        assert shown.code == 0, shown
        text = " ".join(shown.out.split())
        for said in (
            f"{cluster.namespace}/mine 50%",
            "its reservation pod may not be read",
            f"not shown: may not read nodes {node}",
            "not shown: may not list bindrequests in all namespaces",
            f"not shown: of pods, only those of namespace {cluster.namespace} are known",
            f"not shown: may not read configmaps {cluster.namespace}/mine-shared-gpu-0",
        ):
            assert said in text, text

    def test_without_config_maps_the_request_tells_the_limit(self, cluster: Limits) -> None:
        node, group = make_node(cluster), cluster.group()
        share(cluster, "mine", node, group)
        rules = ("", "pods"), ("", "nodes"), ("scheduling.run.ai", "bindrequests")
        shown = gpus(reader(cluster, *rules), node, "-o", "json")
        assert shown.code == 0, shown
        assert shown.gpu["pods"][0]["limit"] == {"source": "Condition", "memoryMiB": 20480}
        (unread,) = json.loads(shown.out)["unread"]
        assert unread.startswith(f"may not read configmaps {cluster.namespace}/mine-shared-gpu-0")

    def test_of_many_pods_the_config_maps_are_not_read(
        self, cluster: Limits, admin: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("controller.explain.gpus.reading.MOST_MAPS", 1)
        node, group = make_node(cluster), cluster.group()
        for name in ("a", "b"):
            share(cluster, name, node, group)
        shown = gpus(admin, node, "-o", "json")
        assert [pod["limit"]["source"] for pod in shown.gpu["pods"]] == ["Condition"] * 2
        (unread,) = json.loads(shown.out)["unread"]
        assert unread.startswith("the ConfigMaps of 2 pods were not read")

    @pytest.mark.parametrize(
        ("args", "said"),
        [
            (["no-such-node"], "there is no node no-such-node"),
            (["../pods"], "there is no node ../pods"),
            (["a", "b"], "unrecognized arguments: b"),
            (["-o", "yaml"], "invalid choice: 'yaml'"),
        ],
    )
    def test_what_cannot_be_told(self, admin: Path, args: list[str], said: str) -> None:
        shown = gpus(admin, *args)
        assert (shown.code, shown.out) == (2, "")
        assert said in shown.err

    def test_no_server(self, tmp_path: Path) -> None:
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
            "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
            "users": [{"name": "c", "user": {}}],
        }
        (tmp_path / "config").write_text(json.dumps(config))
        shown = gpus(tmp_path / "config")
        assert (shown.code, shown.out) == (2, "")
        assert "the API server cannot be asked" in shown.err


@contextmanager
def watching(kubeconfig: Path, *args: str, **options: Any) -> Iterator["subprocess.Popen[bytes]"]:  # noqa: ANN401
    """Runs it with --watch for the block."""
    command = [sys.executable, "-m", "controller", "gpus", "--watch", *args]
    process = subprocess.Popen(
        [*command, f"--kubeconfig={kubeconfig}"], cwd=ROOT, env=environment({"TERM": "xterm"}), **options
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


class TestWatch:
    def test_each_change_is_a_document_and_little_is_asked(self, cluster: Limits, proxy: Proxy) -> None:
        node = make_node(cluster)
        share(cluster, "a", node, cluster.group())
        kubeconfig = proxy.kubeconfig(cluster.plane.admin_token)
        with watching(kubeconfig, node, "-o", "json", stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            first = json.loads(process.stdout.readline())["nodes"][0]
            cluster.pod("new", limits={"nvidia.com/gpu": "1"}, nodeName=node)
            second = json.loads(process.stdout.readline())["nodes"][0]
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 128 + signal.SIGINT
            assert process.stdout.read() == b""
        assert (first["gpus"]["free"], second["gpus"]["free"]) == (1, 0)
        assert [pod["pod"] for pod in second["whole"]] == [f"{cluster.namespace}/new"]
        asked = Counter(call.path.partition("?")[0].rpartition("/")[2] for call in proxy.calls)
        assert (asked.pop("a-shared-gpu-0"), asked.pop("a-shared-gpu-0-evar")) == (1, 1)
        assert set(asked) == {node, "bindrequests", "pods"}
        assert asked["pods"] >= 2
        assert max(asked.values()) - min(asked.values()) <= 1, "it was ended while it looked"
        assert {call.method for call in proxy.calls} == {"GET"}

    @pytest.mark.parametrize(
        ("number", "size", "last"),
        [
            (signal.SIGINT, (0, 0), b"2 GPUs: 2 free"),  # a terminal that does not know its size
            (signal.SIGTERM, (4, 60), b"... 2 more lines; name a node to see less at once"),
        ],
    )
    def test_a_terminal_is_left_as_it_was(
        self, cluster: Limits, admin: Path, number: signal.Signals, size: tuple[int, int], last: bytes
    ) -> None:
        node = make_node(cluster)
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, size)
        with watching(admin, node, stdout=theirs, stdin=theirs, stderr=theirs) as process:
            os.close(theirs)
            seen = b""
            while b"\x1b[J" not in seen:
                seen += os.read(ours, 65536)
            process.send_signal(number)
            assert process.wait(10) == 128 + number
            try:
                while rest := os.read(ours, 65536):
                    seen += rest
            except OSError:
                pass  # how Linux says that nobody has the other end
            os.close(ours)
        assert seen.startswith(b"\x1b[?1049h\x1b[?25l\x1b[H")
        assert seen.endswith(b"\x1b[?25h\x1b[?1049l")
        lines = [line.removesuffix(b"\x1b[K") for line in seen.split(b"\r\n")]
        assert lines[0].endswith(b"1 node, 2 GPUs: 0 shared, 0 whole, 2 free")
        assert lines[-2].endswith(last)

    def test_what_ends_the_first_look_ends_it(self, admin: Path) -> None:
        with watching(admin, "no-such-node", stderr=subprocess.PIPE) as process:
            assert process.wait(20) == 2
            assert process.stderr is not None
            assert b"there is no node no-such-node" in process.stderr.read()

    def test_a_node_that_goes_leaves_its_last_picture(self, cluster: Limits, admin: Path) -> None:
        node = make_node(cluster)
        with watching(admin, node, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, b"")
            assert next(lines).startswith(b"1 node, 2 GPUs")
            cluster.plane.request("DELETE", f"/api/v1/nodes/{node}")
            text = next(line for line in lines if b"nothing can be read now" in line)
            assert text.startswith(b"this is how it was at ")
            assert any(b"there is no node" in line for line in [text, next(lines)])
            assert any(node.encode() in line for line in lines)
