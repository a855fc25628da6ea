"""The reservation agent on a real API server, with the rights that we ship and a token as of a kubelet."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import yaml
from controlplane import ControlPlane

from controller.agent.account import ApiServer
from controller.agent.pod import OwnPod, PodError
from tests.agent import CARD, ONE_GPU, OTHER_CARD, SLICE
from tests.apiserver.agent.conftest import ACCOUNT, Agents, Reservation
from tests.cluster import MERGE, ROOT
from tests.sharing import GPU_INDEX, RESERVATIONS

IN_SLICES = {"cards": [{"uuid": CARD, "mig": True, "slices": [SLICE]}]}
MOST_KIB = 30 * 1024
MOST_IDLE_KIB = 15 * 1024

Reserve = Callable[..., Reservation]


BeforeTheWrite = Callable[[Reservation], Callable[[str], None]]


@pytest.fixture
def before_the_write(tmp_path: Path) -> BeforeTheWrite:
    """The agent's look at its pod; what is returned goes on with the write."""

    def look(pod: Reservation) -> Callable[[str], None]:
        (tmp_path / "token").write_text(pod.plane.token(RESERVATIONS, ACCOUNT))
        (tmp_path / "ca.crt").write_bytes(pod.plane.ca_file.read_bytes())
        address = urlsplit(pod.plane.url)
        server = ApiServer(str(address.hostname), int(address.port or 0), tmp_path)
        found = OwnPod(server, {"POD_NAMESPACE": RESERVATIONS, "POD_NAME": pod.name}, lambda _: None)
        assert not found.has_index()
        return found.report

    return look


def test_the_device_is_named_and_held(reserve: Reserve, agents: Agents) -> None:
    pod = reserve(annotations={"karpenter.sh/do-not-disrupt": "true"})
    agent = agents.make(pod).start()
    agent.wait_until_idle()
    annotations = pod.read()["metadata"]["annotations"]
    assert annotations == {"karpenter.sh/do-not-disrupt": "true", GPU_INDEX: CARD}
    assert agent.stop() == 0
    assert agent.termination_log.read_text() == ""


def test_of_a_card_in_slices_the_slice(reserve: Reserve, agents: Agents) -> None:
    pod = reserve()
    agents.make(pod, IN_SLICES).start().wait_until_idle()
    assert pod.annotation() == SLICE


def test_memory_and_rest(reserve: Reserve, agents: Agents) -> None:
    """Never as much as 30 MiB, half of it once it idles, and then no CPU."""
    agent = agents.make(reserve(), {**ONE_GPU, "hang_s": 1}).start()
    agent.wait_for("the stand-in hangs")
    while_working = agent.memory_kib("VmHWM")
    agent.wait_until_idle()
    time.sleep(0.5)
    before, while_idle = agent.wakeups(), agent.memory_kib("VmHWM")
    assert while_idle < MOST_IDLE_KIB < while_working < MOST_KIB
    time.sleep(1.5)
    assert agent.wakeups() == before


def test_a_signal_between_work_and_rest_is_not_lost(reserve: Reserve, agents: Agents) -> None:
    """At the moment when it says that it is done, it changes over to less memory."""
    for _ in range(5):
        agent = agents.make(reserve()).start()
        agent.wait_for("says GPU-")
        assert agent.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_it_ends_at_once_while_it_idles(reserve: Reserve, agents: Agents, number: signal.Signals) -> None:
    agent = agents.make(reserve()).start()
    agent.wait_until_idle()
    assert agent.stop(number) == 0


def test_it_ends_at_once_while_the_driver_hangs(reserve: Reserve, agents: Agents) -> None:
    pod = reserve()
    agent = agents.make(pod, {**ONE_GPU, "hang_s": 60}).start()
    agent.wait_for("the stand-in hangs")
    assert agent.stop() == 0
    assert pod.annotation() is None


def test_an_empty_annotation_is_written(reserve: Reserve, agents: Agents) -> None:
    pod = reserve(annotations={GPU_INDEX: ""})
    agents.make(pod).start().wait_until_idle()
    assert pod.annotation() == CARD


def test_after_a_restart_nothing_is_written(reserve: Reserve, agents: Agents) -> None:
    pod = reserve(annotations={GPU_INDEX: CARD})
    version = pod.read()["metadata"]["resourceVersion"]
    agent = agents.make(pod).start()
    agent.wait_until_idle()
    assert f"says {CARD} already" in agent.log
    assert pod.read()["metadata"]["resourceVersion"] == version


def test_an_index_stays_and_no_device_is_asked_for(reserve: Reserve, agents: Agents) -> None:
    pod = reserve(annotations={GPU_INDEX: "0"})
    agent = agents.make(pod, {"library": False}).start()
    agent.wait_until_idle()
    assert "says '0', which is no UUID of a device: it stays" in agent.log
    assert pod.annotation() == "0"


def test_another_device_stays(reserve: Reserve, agents: Agents) -> None:
    pod = reserve(annotations={GPU_INDEX: OTHER_CARD})
    told = agents.make(pod).start().refusal()
    assert f"says {OTHER_CARD}, but the pod has {CARD}" in told
    assert pod.annotation() == OTHER_CARD


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ({"cards": [{"uuid": CARD}, {"uuid": OTHER_CARD}]}, f"2 GPUs are visible ({CARD}, {OTHER_CARD};"),
        ({}, "no GPU is visible"),
        ({"library": False}, "no libnvidia-ml.so.1"),
        ({"init": 18}, "different versions"),
        ({"cards": [{"uuid": CARD, "error": 15}]}, "the GPU is lost"),
        ({"cards": [{"uuid": CARD, "mig": True}]}, "none of its slices is visible"),
        ({"cards": [{"uuid": "GPU-\xff"}]}, "which is no UUID"),
    ],
    ids=["two GPUs", "none", "no library", "versions", "lost", "no slice", "odd bytes"],
)
def test_without_one_device_it_ends(
    reserve: Reserve, agents: Agents, machine: dict[str, object], words: str
) -> None:
    pod = reserve()
    assert words in agents.make(pod, machine).start().refusal()
    assert pod.annotation() is None


def test_a_pod_that_is_gone(reserve: Reserve, agents: Agents) -> None:
    """With the token of another pod, as the own one is not accepted for long once its pod is gone."""
    pod, witness = reserve(), reserve()
    agent = agents.make(pod, token=witness.token())
    pod.delete()
    assert "is gone: nothing is left to do" in agent.start().refusal()


def test_the_next_pod_of_its_name_is_not_written_to(reserve: Reserve, agents: Agents) -> None:
    """A forced deletion frees the name while the container still runs; the next pod has another GPU."""
    pod, witness = reserve(), reserve()
    agent = agents.make(pod, token=witness.token())
    pod.replace()
    assert "was replaced by another one of its name" in agent.start().refusal()
    assert pod.annotation() is None


def test_a_pod_that_is_replaced_before_the_write(reserve: Reserve, before_the_write: BeforeTheWrite) -> None:
    """With a token that names no pod."""
    pod = reserve()
    report = before_the_write(pod)
    pod.replace()
    with pytest.raises(PodError, match="was replaced by another one of its name"):
        report(CARD)
    assert pod.annotation() is None


def test_somebody_else_writes_first(reserve: Reserve, before_the_write: BeforeTheWrite) -> None:
    pod = reserve()
    report = before_the_write(pod)
    pod.annotate(OTHER_CARD)
    with pytest.raises(PodError, match=f"says {OTHER_CARD}, but the pod has {CARD}"):
        report(CARD)
    assert pod.annotation() == OTHER_CARD


def test_the_pod_changes_before_the_write(reserve: Reserve, before_the_write: BeforeTheWrite) -> None:
    pod = reserve()
    report = before_the_write(pod)
    pod.plane.request("PATCH", pod.path, {"metadata": {"labels": {"a": "b"}}}, MERGE)
    report(CARD)
    assert pod.annotation() == CARD
    assert pod.read()["metadata"]["labels"] == {"a": "b"}


def test_without_rights(control_plane: ControlPlane, reserve: Reserve, agents: Agents) -> None:
    name = f"nobody-{uuid4().hex[:8]}"
    accounts = f"/api/v1/namespaces/{RESERVATIONS}/serviceaccounts"
    control_plane.request("POST", accounts, {"metadata": {"name": name}})
    agent = agents.make(reserve(account=name)).start()
    agent.wait_for("answers 403, it is tried on")
    told = agent.refusal()
    user = f"system:serviceaccount:{RESERVATIONS}:{name}"
    assert told.startswith(f"{user} may not get pods in namespace {RESERVATIONS}:")
    assert 'cannot get resource "pods"' in told
    assert agent.log.count("403") == 1, "each kind is told once"


def test_rights_that_come_late(control_plane: ControlPlane, reserve: Reserve, agents: Agents) -> None:
    name = f"late-{uuid4().hex[:8]}"
    accounts = f"/api/v1/namespaces/{RESERVATIONS}/serviceaccounts"
    control_plane.request("POST", accounts, {"metadata": {"name": name}})
    pod = reserve(account=name)
    agent = agents.make(pod).start()
    agent.wait_for("answers 403")
    subject = {"kind": "ServiceAccount", "name": name, "namespace": RESERVATIONS}
    role = {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "Role",
        "name": "binder-resource-reservation-agent",
    }
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{RESERVATIONS}/rolebindings"
    control_plane.request("POST", path, {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]})
    agent.wait_until_idle()
    assert pod.annotation() == CARD


def test_a_token_that_is_not_accepted_ends_while_it_waits(reserve: Reserve, agents: Agents) -> None:
    agent = agents.make(reserve(), token="no-such-token").start()
    agent.wait_for("answers 401")
    assert agent.stop() == 0


def test_a_token_that_is_renewed(reserve: Reserve, agents: Agents) -> None:
    pod = reserve()
    agent = agents.make(pod, token="no-such-token").start()
    agent.wait_for("answers 401")
    (agent.account / "token").write_text(pod.token())
    agent.wait_until_idle()
    assert pod.annotation() == CARD


def test_the_server_is_away_at_the_start_and_comes_back(
    control_plane: ControlPlane, reserve: Reserve, agents: Agents
) -> None:
    pod = reserve()
    agent, other = agents.make(pod), agents.make(reserve())
    control_plane.kill_apiserver()
    try:
        agent.start().wait_for("the API server does not answer, it is tried on")
        other.start().wait_for("does not answer")
        assert other.stop() == 0, "a signal ends the wait, too"
    finally:
        control_plane.start_apiserver()
    agent.wait_until_idle()
    assert pod.annotation() == CARD


def test_the_role_allows_what_is_needed_and_no_more(control_plane: ControlPlane, reserve: Reserve) -> None:
    reserve()
    account = f"--as=system:serviceaccount:{RESERVATIONS}:kai-resource-reservation"
    listed = control_plane.kubectl("auth", "can-i", "--list", account, "-n", RESERVATIONS, "--no-headers")
    (pods,) = (line.split() for line in listed.splitlines() if line.startswith("pods "))
    assert pods[-2:] == ["[get", "patch]"]


def test_an_overlay_has_the_rights_of_kais_agent(control_plane: ControlPlane) -> None:
    """B-94, F-61: beside our role, under a name that KAI's chart does not use."""
    text = control_plane.kubectl("kustomize", str(ROOT / "config/overlays/kai-agent"))
    found = {item["kind"]: item for item in yaml.safe_load_all(text)}
    assert found.keys() == {"Role", "RoleBinding"}
    assert found["Role"]["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch", "update"]}
    ]
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": RESERVATIONS}
    assert found["RoleBinding"]["subjects"] == [subject]
    ours = control_plane.kubectl("get", "roles", "-n", RESERVATIONS, "-o", "name")
    assert found["Role"]["metadata"]["name"] not in ours
    assert found["Role"]["metadata"]["name"] != "kai-resource-reservation"
