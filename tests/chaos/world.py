"""Where a run happens: a control plane with an audit log, a proxy, two binders, and who else there is.

Faults, workload and run share it. Invariant: whoever plays a part here (kubelet, provisioner, Deployment)
goes on through all faults, as the real ones do.
"""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar

from controlplane import ControlPlane, ControlPlaneError, RequestError

from tests.binder import Binder
from tests.chaos.history import POLICY, Object, State
from tests.chaos.rules.words import GPU_INDEX, RESERVATIONS, annotations_of, is_live, node_of, status_of
from tests.cluster import MERGE, prepared_plane
from tests.objects import REQUEST_VERSION
from tests.provisioner import Provisioner
from tests.proxy import Proxy

TEAM = "team"
NODES = tuple(f"node-{number}" for number in range(6))
CARD_MIB = 15360
GPUS_OF_A_NODE = 64
ACCOUNT = ("kai-scheduler", "binder")
PLUGINS = {
    "gpumemorylimit": {"enabled": True},
    "nvfractions": {"enabled": True, "priority": 90, "arguments": {"cdiEnabled": "false"}},
}
FLAGS = (
    "--leader-elect",
    "--leader-election-namespace=kai-scheduler",
    f"--plugins={json.dumps(PLUGINS)}",
)
KINDS: Mapping[str, str] = {
    "pods": "/api/v1/pods",
    "configmaps": "/api/v1/configmaps",
    "persistentvolumeclaims": "/api/v1/persistentvolumeclaims",
    "bindrequests": f"/apis/{REQUEST_VERSION}/bindrequests",
    "resourceclaims": "/apis/resource.k8s.io/v1/resourceclaims",
}
NO_ANSWER = (OSError, ControlPlaneError)
T = TypeVar("T")
GIVEN_UP_AFTER_S = 120.0


@dataclass(slots=True)
class Replica:
    """One of the Deployment's pods: a binder that is started again whenever it has ended.

    Attributes:
        binder: The process.
        starts: How often it was started.
        secret: With which its present token ends.
    """

    binder: Binder
    starts: int = 0
    secret: str = ""
    _down: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start_if_ended(self) -> None:
        """Does what the kubelet would."""
        with self._lock:
            if not self._down and not self.binder.running:
                self.binder.kill()  # forgets the one that has ended
                self.binder.start(ready=False)
                self.starts += 1

    def kill(self) -> None:
        """Kills it, and keeps it down until `let_start`."""
        with self._lock:
            self._down = True
            self.binder.kill()

    def let_start(self) -> None:
        """Has it started again."""
        self._down = False

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, unless it has ended."""
        with self._lock:
            if self.binder.running:
                self.binder.signal(number)


class World:
    """Everything that takes part."""

    def __init__(self, plane: ControlPlane, proxy: Proxy, directory: Path) -> None:
        self.plane = plane
        self.proxy = proxy
        self._tokens = 0
        self.replicas = [self._replica(directory, number) for number in range(2)]

    def _replica(self, directory: Path, number: int) -> Replica:
        kubeconfig = directory / f"replica-{number}.kubeconfig"
        replica = Replica(Binder(kubeconfig, directory / f"binder-{number}.log", FLAGS))
        self.give_token(replica)
        return replica

    def give_token(self, replica: Replica) -> None:
        """Writes a fresh token into a replica's kubeconfig, and has the old one end."""
        self._tokens += 1
        old, replica.secret = replica.secret, f"token-{self._tokens}"
        token = self._answered("a token", lambda: self.plane.token(*ACCOUNT, bound_secret=replica.secret))
        self.proxy.kubeconfig(token, path=replica.binder.kubeconfig)
        if old:
            self.send("DELETE", f"/api/v1/namespaces/{ACCOUNT[0]}/secrets/{old}")

    def path(self, resource: str, namespace: str = TEAM) -> str:
        """Where a kind is, in a namespace."""
        head, _, tail = KINDS[resource].rpartition("/")
        return f"{head}/namespaces/{namespace}/{tail}"

    def send(
        self, method: str, path: str, body: Object | None = None, content_type: str = ""
    ) -> Object | None:
        """Has a request carried out, however long the server is away.

        Returns:
            The answer; None if the object is there already (409) or is not (404), which may be what an
            earlier try has left whose answer was lost.
        """

        def sent() -> Object | None:
            try:
                given = {"content_type": content_type} if content_type else {}
                return self.plane.request(method, path, body, **given)
            except RequestError as error:
                if error.status in (404, 409):
                    return None
                raise

        return self._answered(f"{method} {path}", sent)

    def _answered(self, what: str, ask: Callable[[], T]) -> T:
        """Asks until the server answers; one that just started may refuse for lack of roles."""
        until_s = time.monotonic() + GIVEN_UP_AFTER_S
        while True:
            try:
                return ask()
            except NO_ANSWER as error:
                if time.monotonic() > until_s:
                    raise AssertionError(f"{what} is not answered: {error}") from error
            time.sleep(0.2)

    def create(self, path: str, body: Object) -> Object | None:
        """Makes an object; None if it is gone again already."""
        made = self.send("POST", path, body)
        return made if made is not None else self.send("GET", f"{path}/{body['metadata']['name']}")

    def list(self, path: str) -> Sequence[Object]:
        found = self.send("GET", path)
        return found["items"] if found is not None else ()

    def state(self) -> State:
        """What there is now."""
        return State({resource: self.list(path) for resource, path in KINDS.items()})

    def make_node(self, name: str) -> None:
        labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.memory": str(CARD_MIB)}
        self.create("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})


class Player:
    """Somebody who looks again and again, and does his part; what fails he does the next time."""

    def __init__(self, name: str, act: Callable[[], None], every_s: float) -> None:
        self._act = act
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            with suppress(*NO_ANSWER):
                self._act()


class Kubelet:
    """Plays the kubelets of all nodes, the reservation agents, and containers that end after a while."""

    def __init__(self, world: World) -> None:
        self._plane = world.plane
        self._pods = world.path("pods")
        self._reservations = world.path("pods", RESERVATIONS)
        self._running_s: dict[str, float] = {}

    def __call__(self) -> None:
        reserved = self._plane.request("GET", self._reservations)["items"]
        taken = {(node_of(pod), annotations_of(pod).get(GPU_INDEX)) for pod in reserved}
        for pod in filter(is_live, reserved):
            if GPU_INDEX not in annotations_of(pod):
                device = self._free(node_of(pod), taken)
                taken.add((node_of(pod), device))
                self._patch(self._reservations, pod, {"metadata": {"annotations": {GPU_INDEX: device}}})
            elif status_of(pod).get("phase") != "Running":
                self._patch(self._reservations, pod, {"status": {"phase": "Running"}}, "/status")
        for pod in self._plane.request("GET", self._pods)["items"]:
            if node_of(pod) and is_live(pod):
                self._go_on(pod)
            elif pod["metadata"].get("deletionTimestamp"):
                self._remove(pod)

    def _go_on(self, pod: Object) -> None:
        metadata = pod["metadata"]
        if status_of(pod).get("phase") != "Running":
            self._patch(self._pods, pod, {"status": {"phase": "Running"}}, "/status")
            self._running_s[metadata["uid"]] = time.monotonic()
        elif metadata["name"].endswith(("0", "5")):  # some end by themselves
            since_s = self._running_s.setdefault(metadata["uid"], time.monotonic())
            if time.monotonic() <= since_s + 8:
                return
            if pod["spec"].get("resourceClaims"):
                # As long as one that has ended stays there, kube-controller-manager 1.36 takes it off a claim
                # that others use, too, and puts it back, again and again: nothing would ever be quiet.
                self._remove(pod)
            else:
                self._patch(self._pods, pod, {"status": {"phase": "Succeeded"}}, "/status")

    def _remove(self, pod: Object) -> None:
        at_once = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        self._plane.request("DELETE", f"{self._pods}/{pod['metadata']['name']}", at_once)

    def _free(self, node: str, taken: set[tuple[str, str | None]]) -> str:
        """A device of a node that no pod there has."""
        devices = (f"GPU-{node}-{number}" for number in range(GPUS_OF_A_NODE))
        return next(device for device in devices if (node, device) not in taken)

    def _patch(self, path: str, pod: Object, body: Object, subresource: str = "") -> None:
        whole = {"metadata": {"uid": pod["metadata"]["uid"]}, **body}
        if "metadata" in body:
            whole["metadata"] = {**body["metadata"], "uid": pod["metadata"]["uid"]}
        with suppress(RequestError):  # it went meanwhile
            self._plane.request("PATCH", f"{path}/{pod['metadata']['name']}{subresource}", whole, MERGE)


@contextmanager
def open_world(directory: Path) -> Iterator[World]:
    """A fresh world, with nodes, a team and two binders that run."""
    policy = directory / "policy.json"
    policy.write_text(json.dumps(POLICY))
    flags = (f"--audit-policy-file={policy}", "--audit-log-maxsize=4000")
    with ExitStack() as stack:
        plane = stack.enter_context(prepared_plane(directory / "plane", audit=True, apiserver_flags=flags))
        proxy = stack.enter_context(Proxy(plane.url, plane.ca_file, directory))
        world = World(plane, proxy, directory)
        world.create("/api/v1/namespaces", {"metadata": {"name": TEAM}})
        world.create(f"/api/v1/namespaces/{TEAM}/serviceaccounts", {"metadata": {"name": "default"}})
        for node in NODES:
            world.make_node(node)
        stack.enter_context(Provisioner(plane, TEAM))
        stack.enter_context(Player("kubelet", Kubelet(world), 0.2))
        for replica in world.replicas:
            stack.callback(replica.kill)
            stack.enter_context(Player("deployment", replica.start_if_ended, 0.5))
        yield world
