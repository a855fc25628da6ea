"""What the rules have in common: the form of a finding, and how to read requests, pods and reservations.

Written anew instead of borrowed from the binder: a rule that reads with the binder's eyes has its faults.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tests.chaos.history import Entry, History, Key, Life, Object, State

RESERVATIONS = "kai-resource-reservation"
GROUP_LABEL = "runai-gpu-group"
GPU_INDEX = "run.ai/reserve_for_gpu_index"
DEVICES = "NVIDIA_VISIBLE_DEVICES"
LIMIT = "CUDA_DEVICE_MEMORY_LIMIT"
LEASE = ("leases", "kai-scheduler", "2ad35f9c.kai.scheduler")
EXPECTED = "chaos.example.com/expected"
"""On a request: `Bound`, `Deleted`, or the reasons with which it may fail, apart from what befalls it."""
LIMITED = "chaos.example.com/limit"
"""On a pod: the limit that its container must have."""
BOUND = "Bound"
DELETED = "Deleted"

Finding = tuple[str, tuple[Key, ...]]
"""What is wrong, in a sentence, and the objects whose histories show it."""

Rule = Callable[[History, State], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class User:
    """A pod that was bound with shares of GPUs.

    Attributes:
        pod: Its life.
        request: The one that it was bound for.
        node: Where it is.
        groups: Of its GPUs.
        bound_s: When it certainly was.
        devices: What its container was told, in the order of the groups; empty if nothing is known.
    """

    pod: Life
    request: Object
    node: str
    groups: tuple[str, ...]
    bound_s: float
    devices: tuple[str, ...]

    def lives_with(self, other: "User") -> bool:
        """Whether both certainly were there at a time."""
        begin = max(self.bound_s, other.bound_s)
        return begin < min(self.pod.perhaps_gone_s, other.pod.perhaps_gone_s)


def spec_of(item: Object) -> Object:
    return item.get("spec") or {}


def status_of(item: Object) -> Object:
    return item.get("status") or {}


def labels_of(item: Object) -> dict[str, str]:
    return item["metadata"].get("labels") or {}


def annotations_of(item: Object) -> dict[str, str]:
    return item["metadata"].get("annotations") or {}


def node_of(pod: Object) -> str:
    return str(spec_of(pod).get("nodeName") or "")


def is_fraction(request: Object) -> bool:
    return bool(spec_of(request).get("receivedResourceType") == "Fraction")


def groups_of(request: Object) -> tuple[str, ...]:
    """The GPU groups of a request, of the newer field if it has any."""
    spec = spec_of(request)
    if not is_fraction(request):
        return ()
    newer = [entry["id"] for entry in spec.get("selectedFractionalGpuGroups") or ()]
    return tuple(newer or spec.get("selectedGPUGroups") or ())


def groups_of_labels(pod: Object) -> set[str]:
    """The GPU groups that a pod's labels name."""
    return {value for key, value in labels_of(pod).items() if key.partition("/")[0] == GROUP_LABEL}


def owner_uid(item: Object) -> str:
    """The uid of the pod that owns an object."""
    owners = item["metadata"].get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners if owner["kind"] == "Pod"), "")


def is_live(pod: Object) -> bool:
    """Whether a pod neither has ended nor is about to go."""
    ended = status_of(pod).get("phase") in ("Succeeded", "Failed")
    return not ended and not pod["metadata"].get("deletionTimestamp")


def attempts_of(request: Object) -> int:
    return int(status_of(request).get("failedAttempts") or 0)


def most_attempts(request: Object) -> int:
    """How many attempts a request has; the scheduler reads it so (B-13)."""
    return max(1, int(spec_of(request).get("backoffLimit") or 0))


def is_over(request: Object) -> bool:
    """Whether nobody will work on a request any more."""
    status = status_of(request)
    if status.get("phase") == "Succeeded":
        return True
    if status.get("phase") != "Failed":
        return False
    limit = spec_of(request).get("backoffLimit")
    return limit is None or attempts_of(request) >= limit


def reason_of(request: Object) -> str:
    """Why a request has failed: the word behind the condition at fault."""
    words = str(status_of(request).get("reason") or "").partition(":")[0].split()
    return words[-1] if words else ""


def conditions_of(item: Object) -> dict[str, Object]:
    return {condition["type"]: condition for condition in status_of(item).get("conditions") or ()}


def request_of(history: History, binding: Entry) -> Object | None:
    """The request that a pod was bound for: the last one for it that there was then."""
    _, namespace, name = binding.key
    found = [
        life.first
        for life in history.of("bindrequests")
        if life.key[1] == namespace and spec_of(life.first).get("podName") == name
        if life.born_s <= binding.done_s
        if owner_uid(life.first) in ("", binding.sent["metadata"].get("uid", ""))
    ]
    return found[-1] if found else None


def users(history: History) -> list[User]:
    """All pods that were ever bound with shares of GPUs."""
    found = []
    for binding in history.bindings():
        pod = history.life("pods", str(binding.sent["metadata"].get("uid", "")))
        request = request_of(history, binding)
        if pod is None or request is None or not groups_of(request):
            continue
        node = str(binding.sent["target"]["name"])
        told = devices_told(history, pod, binding.at_s)
        found.append(User(pod, request, node, groups_of(request), binding.done_s, told))
    return found


def maps_of(history: History, pod: Life) -> list[Life]:
    """The ConfigMaps that belong to a pod, also if others had their names later."""
    return [life for life in history.of("configmaps") if owner_uid(life.first) == pod.uid]


def devices_told(history: History, pod: Life, before_s: float) -> tuple[str, ...]:
    """The devices that a pod's maps named at a moment."""
    for life in maps_of(history, pod):
        if life.gone_s < before_s:
            continue  # of an attempt that failed
        data = [version.get("data") or {} for version in life.versions(before_s)]
        if data and data[-1].get(DEVICES):
            return tuple(data[-1][DEVICES].split(","))
    return ()


def reservations(history: History) -> list[Life]:
    """All reservation pods that have ever been."""
    return [life for life in history.of("pods") if life.key[1] == RESERVATIONS]


def device_of(reservation: Life) -> str:
    """The device that a reservation pod named in the end; empty if none."""
    return annotations_of(reservation.last()).get(GPU_INDEX, "")


def live_reservations(state: State) -> list[Object]:
    """The reservation pods that hold a GPU in the end."""
    return [pod for pod in state.of("pods") if pod["metadata"]["namespace"] == RESERVATIONS and is_live(pod)]


def live_users(state: State) -> Iterable[tuple[Object, set[str]]]:
    """The pods that share GPUs in the end, and the groups of those."""
    by_pod = {owner_uid(item): item for item in state.of("bindrequests")}
    for pod in state.of("pods"):
        if pod["metadata"]["namespace"] == RESERVATIONS or not is_live(pod) or not node_of(pod):
            continue
        request = by_pod.get(pod["metadata"]["uid"])
        told = (
            set(groups_of(request)) if request and status_of(request).get("phase") == "Succeeded" else set()
        )
        if groups := groups_of_labels(pod) | told:
            yield pod, groups
