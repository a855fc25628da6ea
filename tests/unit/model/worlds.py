"""One GPU group on one node: what there is of it, as objects, and what the real code says of it.

The model in `groups.py` asks. Invariant: all is pure, and kept for the next time that it is asked.
"""

from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar, cast

from controller.binder.reconciler import keys_to_bind
from controller.kai.names import GROUP_LABEL, PODS
from controller.kai.nodepool import WHOLE
from controller.kai.outcome import Failed
from controller.reservation.groups import (
    GroupReconciler,
    groups_of_changed_request,
    groups_of_changed_reservation,
)
from controller.reservation.manifest import ReservationOptions, reservation_name
from controller.reservation.members import GROUP_INDEX, GroupCaches, Members, pod_key
from controller.reservation.pods import why_lost
from controller.reservation.shard import Shard
from controller.reservation.usage import Usage
from controller.runtime import errors
from controller.runtime.cache import Cache, Change
from controller.runtime.client import Client, Listed, Object, Resource

T = TypeVar("T")
GROUP, NODE, NAMESPACE, RESERVATIONS = "g", "n", "ns", "reservations"
OPTIONS = ReservationOptions(
    scheduler_name="kai-scheduler",
    namespace=RESERVATIONS,
    service_account="a",
    app_label="a",
    image="i",
    timeout_s=1.0,
)
PENDING, BOUND, ENDED = "pending", "bound", "ended"


class Pod(NamedTuple):
    state: str = PENDING
    device: int = 0


class Request(NamedTuple):
    uid: int
    phase: str = ""


class Reservation(NamedTuple):
    uid: int
    answered: bool = False


class World(NamedTuple):
    """What the server has, or a cache shows; None for what there is not."""

    requests: tuple[Request | None, ...]
    pods: tuple[Pod | None, ...]
    reservation: Reservation | None = None


class Shelf(Cache):
    """A cache that shows what it is told to."""

    def __init__(self, items: Iterable[Object], index: Callable[[str, Object], Iterable[str]]) -> None:
        self._items = list(items)
        self._index = index

    def get(self, name: str, namespace: str = "") -> Object | None:
        wanted = (name, namespace)
        named = ((item["metadata"]["name"], item["metadata"]["namespace"], item) for item in self._items)
        return next((item for *key, item in named if tuple(key) == wanted), None)

    def by_index(self, index: str, value: str) -> list[Object]:
        return [item for item in self._items if value in self._index(index, item)]


class Server(Client):
    """Answers at once, with what there is."""

    def __init__(self, world: World) -> None:
        self._pods = [pod_object(n, pod) for n, pod in enumerate(world.pods) if pod is not None]

    async def list_all(
        self,
        resource: Resource,
        params: Mapping[str, str] | None = None,
        **_: object,
    ) -> Listed:
        selected = (params or {})["labelSelector"] == f"{GROUP_LABEL}={GROUP}"
        labelled = [pod for pod in self._pods if pod["metadata"]["labels"]]
        return Listed(labelled if selected and resource == PODS else [], "1")

    async def get(
        self, resource: Resource, name: str, namespace: str | None = None, *, subresource: str = ""
    ) -> Object:
        for pod in self._pods:
            if pod["metadata"]["name"] == name:
                return pod
        raise errors.from_status("GET", 404, {}, "no")


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of what never has to wait."""
    try:
        work.send(None)
    except StopIteration as done:
        return cast(T, done.value)
    raise AssertionError("it waits")


@cache
def pod_object(number: int, pod: Pod) -> Object:
    labels = {GROUP_LABEL: GROUP} if pod.state != PENDING else {}
    metadata = {"name": f"p{number}", "namespace": NAMESPACE, "uid": f"pod-{number}", "labels": labels}
    metadata["annotations"] = {"gpu-fraction": "0.5"}
    status = {"phase": "Succeeded"} if pod.state == ENDED else {}
    spec = {"schedulerName": "kai-scheduler", **({"nodeName": NODE} if pod.state != PENDING else {})}
    return {"metadata": metadata, "spec": spec, "status": status}


@cache
def request_object(number: int, request: Request) -> Object:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": f"p{number}", "uid": f"pod-{number}"}
    metadata: Object = {"name": f"p{number}", "namespace": NAMESPACE, "generation": 1}
    metadata |= {"uid": f"request-{number}-{request.uid}", "ownerReferences": [owner]}
    spec = {"podName": f"p{number}", "selectedNode": NODE, "receivedResourceType": "Fraction"}
    return {
        "metadata": metadata,
        "spec": {**spec, "selectedGPUGroups": [GROUP]},
        "status": {"phase": request.phase, "failedAttempts": 1} if request.phase else {},
    }


@cache
def reservation_object(found: Reservation) -> Object:
    metadata = {"name": reservation_name(NODE, GROUP), "namespace": RESERVATIONS}
    annotations = {"run.ai/reserve_for_gpu_index": f"GPU-{found.uid}"} if found.answered else {}
    more = {"uid": f"reservation-{found.uid}", "labels": {GROUP_LABEL: GROUP}, "annotations": annotations}
    return {"metadata": {**metadata, **more}, "spec": {"nodeName": NODE}, "status": {}}


def caches_of(world: World) -> GroupCaches:
    def of_request(index: str, item: Object) -> Iterable[str]:
        return (GROUP,) if index == GROUP_INDEX else (pod_key(NAMESPACE, item["spec"]["podName"]),)

    def of_pod(_: str, item: Object) -> Iterable[str]:
        return item["metadata"]["labels"].values()  # type: ignore[no-any-return]

    requests = (request_object(n, item) for n, item in enumerate(world.requests) if item is not None)
    pods = (pod_object(n, pod) for n, pod in enumerate(world.pods) if pod is not None)
    held = [] if world.reservation is None else [reservation_object(world.reservation)]
    shard = Shard(Server(world), WHOLE, Shelf((), of_pod))
    return GroupCaches(Shelf(requests, of_request), Shelf(pods, of_pod), Shelf(held, of_pod), shard)


@cache
def members_of(seen: World, server: World, removed: frozenset[int]) -> Members:
    usage = Usage()
    for uid in removed:
        with usage.removing(reservation_object(Reservation(uid))):
            pass
    return Members(Server(server), caches_of(seen), OPTIONS, usage)


@cache
def needed(seen: World) -> bool:
    return members_of(seen, seen, frozenset()).is_needed(GROUP, (NODE,))


@cache
def needed_live(seen: World, server: World) -> bool:
    return at_once(members_of(seen, server, frozenset()).is_needed_live(GROUP, (NODE,)))


@cache
def lost(number: int, seen: World, relied_on: bool) -> Failed | None:
    users = members_of(seen, seen, frozenset()).users(GROUP)
    relied = {GROUP} if relied_on else set[str]()
    return why_lost(GROUP, pod_object(number, Pod())["metadata"]["uid"], NODE, users, relied)


@cache
def woken_by(before: World, after: World) -> tuple[bool, frozenset[int]]:
    members = SimpleNamespace(members=None, pods=None)
    of_pods = GroupReconciler(
        cast(Any, None), caches_of(after), cast(Any, members), Usage(), cast(Any, None)
    ).groups_of_changed_pod
    groups, requests = set[str](), set[int]()
    for number in range(len(after.pods)):
        for change in _changes_of_request(number, before.requests[number], after.requests[number]):
            groups.update(groups_of_changed_request(change))
            requests.update(number for _ in keys_to_bind(change))
        of_pod = _change(pod_object, number, before.pods[number], after.pods[number])
        if of_pod is not None:
            groups.update(of_pods(of_pod))
    old, new = before.reservation, after.reservation
    if old != new:
        shown = [None if item is None else reservation_object(item) for item in (old, new)]
        groups.update(groups_of_changed_reservation(Change(*shown)))
    return GROUP in groups, frozenset(requests)


def _changes_of_request(number: int, old: Request | None, new: Request | None) -> list[Change]:
    """As a cache tells them: one of another uid is another object."""
    if old is not None and new is not None and old.uid != new.uid:
        return [Change(request_object(number, old), None), Change(None, request_object(number, new))]
    change = _change(request_object, number, old, new)
    return [] if change is None else [change]


def _change(make: Callable[[int, T], Object], number: int, old: T | None, new: T | None) -> Change | None:
    if old == new:
        return None
    return Change(
        None if old is None else make(number, old),
        None if new is None else make(number, new),
    )
