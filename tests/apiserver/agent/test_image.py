"""Which image reservation pods run, and that binder and agent together share a GPU.

The binder is a process of its own here; a pod that stands for its own is made beside it.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from controlplane import ControlPlane

from controller.kai.outcome import Failed
from controller.reservation import image as reservation_image
from controller.reservation.image import AgentImage
from controller.reservation.manifest import Agent, OwnPod, ReservationOptions
from controller.runtime.client import Client, ClientOptions, Object
from tests.agent import CARD
from tests.apiserver.agent.conftest import Agents, Reservation
from tests.binder import Binder, Binders
from tests.polling import wait_until
from tests.proxy import Answer, Proxy, Rule
from tests.sharing import Sharing

PLACEHOLDER = "registry/local/kai-scheduler/resource-reservation"
OURS = "registry.example.com:5000/team/kai-binder"
KAIS = "registry.example.com/kai-scheduler/resourcereservation:v0.18.2"
BINDER_NAMESPACE = "kai-scheduler"
DIGEST = f"@sha256:{'0a' * 32}"

StartIn = Callable[..., Binder]


@pytest.fixture
def cluster(control_plane: ControlPlane) -> Sharing:
    """A namespace in which no stub answers for reservation pods."""
    return Sharing.fresh(control_plane)


@pytest.fixture
def start_in(control_plane: ControlPlane, binders: Binders) -> Iterator[StartIn]:
    """Starts a binder that takes a pod with these containers, by name, for its own."""
    pods = f"/api/v1/namespaces/{BINDER_NAMESPACE}/pods"
    made: list[str] = []

    def start(
        *flags: str, secrets: tuple[str, ...] = (), kubeconfig: Path | None = None, **images: str
    ) -> Binder:
        name = f"binder-{uuid4().hex[:8]}"
        containers = [{"name": key, "image": image} for key, image in images.items()]
        spec: Object = {"serviceAccountName": "binder", "containers": containers}
        spec["imagePullSecrets"] = [{"name": secret} for secret in secrets]
        if containers:
            control_plane.request("POST", pods, {"metadata": {"name": name}, "spec": spec})
            made.append(name)
        env = {"POD_NAME": name, "POD_NAMESPACE": BINDER_NAMESPACE}
        return binders.start(*flags, env=env, kubeconfig=kubeconfig)

    yield start
    for name in made:
        control_plane.request("DELETE", f"{pods}/{name}?gracePeriodSeconds=0")


def reserved(cluster: Sharing) -> Object:
    """The container of the reservation pod that a first share has made."""
    group = cluster.group()
    cluster.share("a", cluster.node(), group)
    (container,) = cluster.wait_for_reservation(group)["spec"]["containers"]
    return dict(container)


def runs(cluster: Sharing) -> tuple[str, list[str] | None]:
    container = reserved(cluster)
    return container["image"], container.get("args")


@pytest.mark.parametrize("image", [f"{OURS}:v1", f"{OURS}{DIGEST}", "kai-binder"])
def test_the_binders_own_image_as_it_was_typed(cluster: Sharing, start_in: StartIn, image: str) -> None:
    binder = start_in(binder=image)
    assert runs(cluster) == (image, ["agent"])
    assert "GPUs cannot be shared" not in binder.log
    (told,) = (
        line for line in binder.log.splitlines() if "Reservation pods run the binder's own image" in line
    )
    assert f"image={image}" in told.split()


def test_beside_other_containers(cluster: Sharing, start_in: StartIn) -> None:
    start_in(proxy="registry.example.com/proxy:1", binder=f"{OURS}:v1")
    assert runs(cluster) == (f"{OURS}:v1", ["agent"])


def test_the_only_container_whatever_its_name(cluster: Sharing, start_in: StartIn) -> None:
    start_in(main=f"{OURS}:v1")
    assert runs(cluster) == (f"{OURS}:v1", ["agent"])


@pytest.mark.parametrize("image", [f"{OURS}:v2", f"{OURS}{DIGEST}", OURS])
def test_an_image_that_is_set_and_ours(cluster: Sharing, start_in: StartIn, image: str) -> None:
    start_in(f"--resource-reservation-pod-image={image}", binder=f"{OURS}:v1")
    assert runs(cluster) == (image, ["agent"])


@pytest.mark.parametrize("image", [KAIS, "kai-binder:v1", "registry.example.com/team/kai-binder:v1"])
def test_an_image_that_is_set_and_another(cluster: Sharing, start_in: StartIn, image: str) -> None:
    """B-87: nothing is added."""
    start_in(f"--resource-reservation-pod-image={image}", binder=f"{OURS}:v1")
    assert runs(cluster) == (image, None)


def test_secrets_stay_those_of_the_service_account(cluster: Sharing, start_in: StartIn) -> None:
    start_in(binder=f"{OURS}:v1", secrets=("of-the-binder",))
    group = cluster.group()
    cluster.share("a", cluster.node(), group)
    assert "imagePullSecrets" not in cluster.wait_for_reservation(group)["spec"]


@pytest.mark.parametrize(
    ("images", "words"),
    [({}, "cannot be read: "), ({"x": "a", "y": "b"}, "none of the containers of pod")],
    ids=["no such pod", "no such container"],
)
def test_what_cannot_be_known_fails_at_once(
    cluster: Sharing, start_in: StartIn, images: dict[str, str], words: str
) -> None:
    """A pod with the placeholder would hold a GPU until the time is over, and nobody would know why."""
    binder = start_in(**images)
    group = cluster.group()
    cluster.share("a", cluster.node(), group)
    reason = cluster.wait_for("a", "Failed")["reason"]
    assert reason.startswith("GPUReserved ReservationImageUnknown: "), reason
    assert words in reason
    assert "--resource-reservation-pod-image" in reason
    cluster.assert_nothing_left("a", group)
    (told,) = (line for line in binder.log.splitlines() if "GPUs cannot be shared" in line)
    assert words in told


def test_a_binder_that_may_not_read_its_pod(
    control_plane: ControlPlane, cluster: Sharing, start_in: StartIn, proxy: Proxy
) -> None:
    """It is asked once for the binds of a minute; with an image that is set it does not matter."""
    kubeconfig = proxy.kubeconfig(control_plane.token("kai-scheduler", "binder"))
    own = f"/namespaces/{BINDER_NAMESPACE}/pods/binder-"
    with proxy.rule(Rule(Answer(403), path=own)):
        start_in(kubeconfig=kubeconfig, binder=f"{OURS}:v1")
        for name in ("a", "b", "c"):
            cluster.share(name, cluster.node(), cluster.group())
            assert "ReservationImageUnknown" in cluster.wait_for(name, "Failed")["reason"]
    assert proxy.count("GET", own) == 1


def test_nodes_with_fake_gpus_need_no_agent(cluster: Sharing, start_in: StartIn) -> None:
    start_in("--fake-gpu-nodes")
    group = cluster.group()
    cluster.share("a", cluster.node(labels={"run.ai/fake.gpu": "true"}), group)
    (container,) = cluster.wait_for_reservation(group)["spec"]["containers"]
    assert (container["image"], container["args"]) == ("ubuntu", ["sleep", "infinity"])


def test_outside_of_pods_the_image_is_as_it_was_set(cluster: Sharing, binders: Binders) -> None:
    """By default it is KAI's placeholder, and that is told; whether it can be pulled the nodes know."""
    binder = binders.start()
    assert runs(cluster) == (PLACEHOLDER, None)
    assert "is a placeholder" in binder.log


@pytest.mark.anyio
async def test_what_could_not_be_known_is_asked_for_again(
    control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, name = f"/api/v1/namespaces/{BINDER_NAMESPACE}/pods", f"binder-{uuid4().hex[:8]}"
    client = await Client.connect(ClientOptions(kubeconfig=str(control_plane.admin_kubeconfig)))
    options = ReservationOptions(
        scheduler_name="kai-scheduler",
        namespace="kai-resource-reservation",
        service_account="kai-resource-reservation",
        app_label="kai-resource-reservation",
        image=PLACEHOLDER,
        image_is_set=False,
        own_pod=OwnPod(BINDER_NAMESPACE, name),
        timeout_s=40.0,
    )
    image = AgentImage(client, options)
    try:
        missing = await image.agent()
        assert isinstance(missing, Failed)
        spec = {"serviceAccountName": "binder", "containers": [{"name": "binder", "image": OURS}]}
        control_plane.request("POST", path, {"metadata": {"name": name}, "spec": spec})
        assert await image.agent() == missing, "not within a minute"
        monkeypatch.setattr(reservation_image, "_ASK_AGAIN_AFTER_S", 0.0)
        assert await image.agent() == Agent(OURS, ("agent",))
        control_plane.request("DELETE", f"{path}/{name}?gracePeriodSeconds=0")
        assert await image.agent() == Agent(OURS, ("agent",)), "once is enough"
    finally:
        await client.close()


def test_the_own_pod_is_read_once(
    control_plane: ControlPlane, cluster: Sharing, start_in: StartIn, proxy: Proxy
) -> None:
    """F-64: a start stays cheap; but a server that is away is asked again."""
    kubeconfig = proxy.kubeconfig(control_plane.token("kai-scheduler", "binder"))
    own = f"/namespaces/{BINDER_NAMESPACE}/pods/binder-"
    with proxy.rule(Rule(Answer(503), path=own, times=1)):
        start_in(kubeconfig=kubeconfig, binder=f"{OURS}:v1")
        for name in ("a", "b", "c"):
            group = cluster.group()
            cluster.share(name, cluster.node(), group)
            (container,) = cluster.wait_for_reservation(group)["spec"]["containers"]
            assert (container["image"], container["args"]) == (f"{OURS}:v1", ["agent"])
    assert proxy.count("GET", own) == 2


def test_a_problem_is_told_before_a_gpu_is_shared(start_in: StartIn) -> None:
    binder = start_in()
    assert "GPUs cannot be shared" not in binder.log
    wait_until(lambda: "GPUs cannot be shared" in binder.log, within_s=15)


def test_a_share_from_the_binder_to_the_agent(
    control_plane: ControlPlane, cluster: Sharing, start_in: StartIn, agents: Agents
) -> None:
    """The pod that the binder makes is all that the agent needs; what it writes the container gets."""
    start_in(binder=f"{OURS}:v1")
    group = cluster.group()
    cluster.share("a", cluster.node(), group)
    made = cluster.wait_for_reservation(group)
    agent = agents.make(Reservation(control_plane, made)).start()
    agent.wait_until_idle()
    cluster.wait_for("a", "Succeeded")
    assert cluster.data("a-shared-gpu-0")["NVIDIA_VISIBLE_DEVICES"] == CARD
    assert agent.stop() == 0
