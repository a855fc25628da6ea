"""Makes the picture: from nodes, pods and requests to GPUs and the pods on each. Pure.

`command.py` has one made for each reading. Invariants: who uses a GPU is decided by the binder's own rules
(`reservation.members`); only pods that live on a node count, and those that are about to go count until they
are gone, as their GPU is not free before.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from controller.explain.gpus.amounts import allocatable, amounts_of, has_gpus
from controller.explain.gpus.model import (
    Holding,
    NodeGPUs,
    Picture,
    Pod,
    Reservation,
    SharedGPU,
    Sight,
    Slices,
    Use,
)
from controller.explain.gpus.shares import devices_of, limit_of, size_of
from controller.explain.gpus.troubles import judged
from controller.kai.memory import Card, card_of
from controller.kai.names import GPU_INDEX, GPU_PRODUCT, GPU_RESOURCE, MEMORY_LIMIT, MIG_RESOURCE_PREFIX
from controller.kai.outcome import Failed
from controller.kai.pods import annotation, full_name, is_finished, is_owner
from controller.kai.request import is_over
from controller.kai.sharing import groups_of_pod, groups_of_request
from controller.reservation.evidence import asks_for_share, groups_used, has_succeeded, node_of
from controller.reservation.manifest import NAME_PREFIX, device_of, mode_of
from controller.reservation.members import looks_like_reservation, pods_of_request
from controller.runtime.client import Object

Maps = Mapping[str, Mapping[str, str]]
"""Data of a pod's ConfigMaps, by name."""


class Names(Struct, frozen=True, kw_only=True):
    """How the binder was told to name things.

    Attributes:
        scheduler: The scheduler whose pods share GPUs.
        reservations: Namespace of the reservation pods.
        app_label: Value of their label `app`.
        variable: That the limiter in the container reads.
    """

    scheduler: str = "kai-scheduler"
    reservations: str = "kai-resource-reservation"
    app_label: str = "kai-resource-reservation"
    variable: str = MEMORY_LIMIT


class Read(Struct, frozen=True, kw_only=True):
    """What was read.

    Attributes:
        nodes: Nodes, at least those with GPUs.
        pods: Pods on nodes, at least those that `concerns_gpus`.
        requests: BindRequests.
        later: BindRequests again, as they were after the pods were read; None if that was not needed.
        maps: By uid of the pod, what its ConfigMaps hold; those that were not read are missing.
        sight: What could be read.
    """

    nodes: Sequence[Object] = ()
    pods: Sequence[Object] = ()
    requests: Sequence[Object] = ()
    later: Sequence[Object] | None = None
    maps: Mapping[str, Maps] = field(default_factory=dict)
    sight: Sight = field(default_factory=Sight)


class _OnNode(Struct):
    """What is on one node: who holds GPUs (by group as well), who shares them, who has whole ones."""

    reservations: list[Object] = field(default_factory=list)
    holders: dict[str, list[Object]] = field(default_factory=lambda: defaultdict(list))
    users: dict[str, list[Object]] = field(default_factory=lambda: defaultdict(list))
    amounts: dict[str, list[Holding]] = field(default_factory=lambda: defaultdict(list))


def concerns_gpus(pod: Object) -> bool:
    """Whether a pod has to do with GPUs, as far as it says."""
    return bool(groups_of_pod(pod)) or asks_for_share(pod) or bool(amounts_of(pod))


def picture_of(read: Read, names: Names) -> Picture:
    """The picture of what was read."""
    by_pod: dict[str, list[Object]] = defaultdict(list)
    for item in read.requests:
        for key in pods_of_request(item):
            by_pod[key].append(item)
    own = {
        pod["metadata"]["uid"]: [item for item in by_pod.get(full_name(pod), ()) if is_owner(item, pod)]
        for pod in read.pods
    }
    places: dict[str, _OnNode] = defaultdict(_OnNode)
    for pod in read.pods:
        if node_of(pod) and not is_finished(pod):
            _place(pod, own[pod["metadata"]["uid"]], places[node_of(pod)], names)
    nodes = {node["metadata"]["name"]: node for node in read.nodes}
    shown = {name for name, node in nodes.items() if has_gpus(node)}
    shown |= {name for name, place in places.items() if place.reservations or place.users or place.amounts}
    awaited = _awaited(read)
    return Picture(
        tuple(
            _NodeView(read, names, own, awaited).node_of(name, nodes.get(name), places[name])
            for name in sorted(shown)
        ),
        read.sight,
    )


def is_reservation(pod: Object, names: Names) -> bool:
    """Whether a pod holds a GPU for others."""
    metadata = pod["metadata"]
    marked = bool(groups_of_pod(pod)) or metadata["name"].startswith(NAME_PREFIX)
    return marked and looks_like_reservation(pod, names.reservations, names.app_label)


def _place(pod: Object, requests: Sequence[Object], place: _OnNode, names: Names) -> None:
    if is_reservation(pod, names):
        place.reservations.append(pod)
        for group in groups_of_pod(pod):
            place.holders[group].append(pod)
        return
    for group in groups_used(pod, requests, names.scheduler):
        place.users[group].append(pod)
    for resource, count in amounts_of(pod).items():
        place.amounts[resource].append(Holding(_shown(pod), count))


def _awaited(read: Read) -> frozenset[tuple[str, str]]:
    """Node and group of requests that may be being worked on.

    One that had not ended before the pods were read may have made a reservation that they show, and have
    ended since.
    """
    under_way = [item for item in read.requests if not is_over(item)]
    if read.later is not None:
        ended = {item["metadata"]["uid"] for item in read.requests if is_over(item)}
        under_way += (item for item in read.later if item["metadata"]["uid"] not in ended)
    return frozenset(
        (str((item.get("spec") or {}).get("selectedNode")), group)
        for item in under_way
        for group in groups_of_request(item)
    )


def _shown(pod: Object) -> Pod:
    metadata = pod["metadata"]
    phase = str((pod.get("status") or {}).get("phase") or "Unknown")
    return Pod(
        full_name(pod), metadata["namespace"], "Terminating" if metadata.get("deletionTimestamp") else phase
    )


class _NodeView(Struct, frozen=True):
    """Makes what is shown of a node."""

    read: Read
    names: Names
    requests: Mapping[str, Sequence[Object]]
    awaited: frozenset[tuple[str, str]]

    def node_of(self, name: str, node: Object | None, place: _OnNode) -> NodeGPUs:
        """The node with its GPUs, and what is wrong there."""
        card = card_of(node) if node is not None else None
        known = card if isinstance(card, Card) else None
        labels = (node["metadata"].get("labels") or {}) if node is not None else {}
        amounts = allocatable(node) if node is not None else {}
        profiles = sorted(set(filter(_is_mig, amounts)) | set(filter(_is_mig, place.amounts)))
        made = NodeGPUs(
            name=name,
            product=str(labels.get(GPU_PRODUCT) or ""),
            card_mib=known.mib if known is not None else None,
            total=amounts.get(GPU_RESOURCE, 0) if node is not None else None,
            shared=tuple(self._shared(name, place, known)),
            whole=_sorted(place.amounts.get(GPU_RESOURCE, ())),
            slices=tuple(
                Slices(
                    profile.removeprefix(MIG_RESOURCE_PREFIX),
                    amounts.get(profile, 0) if node is not None else None,
                    _sorted(place.amounts.get(profile, ())),
                )
                for profile in profiles
            ),
        )
        failed = card if isinstance(card, Failed) else None
        return judged(made, self.read.sight, failed, is_known=node is not None)

    def _shared(self, node: str, place: _OnNode, card: Card | None) -> list[SharedGPU]:
        """The shared GPUs of a node, in the order of their devices."""
        made = []
        left = {group: list(users) for group, users in place.users.items()}
        for pod in sorted(place.reservations, key=lambda pod: self._order(pod, place)):
            groups = sorted(groups_of_pod(pod))
            users = [user for group in groups for user in self._on(pod, left.get(group, []), place)]
            for group in groups:
                left[group] = [user for user in left.get(group, ()) if user not in users]
            awaited = any((node, group) in self.awaited for group in groups)
            uses = self._uses(users, card)
            made.append(SharedGPU(", ".join(groups), _reservation(pod), uses, awaited))
        hidden = not self.read.sight.reservations
        made += (
            SharedGPU(group, None, self._uses(users, card), (node, group) in self.awaited, hidden)
            for group, users in left.items()
            if users
        )
        return sorted(made, key=lambda gpu: (not gpu.device, gpu.device, gpu.group, str(gpu.reservation)))

    def _order(self, pod: Object, place: _OnNode) -> tuple[object, ...]:
        """Of several reservations of a group that comes first which its users go by, as for the binder."""
        metadata = pod["metadata"]
        if not _rivals(pod, place):
            return False, False, "", metadata["name"]
        told = {
            device
            for group in groups_of_pod(pod)
            for user in place.users.get(group, ())
            for device in self._devices(user)
        }
        made = metadata.get("creationTimestamp", "")
        no_device = not isinstance(device_of(pod), str)
        return annotation(pod, GPU_INDEX) not in told, no_device, made, metadata["name"]

    def _on(self, pod: Object, users: Iterable[Object], place: _OnNode) -> list[Object]:
        """Those users of a reservation's group who are on its GPU and on no other one of the group."""
        device = device_of(pod)
        others = {annotation(other, GPU_INDEX) for other in _rivals(pod, place)} - {device}
        if not others:
            return list(users)
        return [user for user in users if not self._devices(user) & others or device in self._devices(user)]

    def _devices(self, user: Object) -> frozenset[str]:
        return devices_of(user, self.read.maps.get(user["metadata"]["uid"]))

    def _uses(self, users: Iterable[Object], card: Card | None) -> tuple[Use, ...]:
        each = {user["metadata"]["uid"]: user for user in users}
        return tuple(self._use(user, card) for user in sorted(each.values(), key=full_name))

    def _use(self, user: Object, card: Card | None) -> Use:
        uid = user["metadata"]["uid"]
        requests, maps = self.requests[uid], self.read.maps.get(uid)
        used = groups_used(user, requests, self.names.scheduler)
        given = next(
            (item for item in requests if has_succeeded(item) and used & groups_of_request(item)), None
        )
        limit = limit_of(user, given, maps, self.names.variable)
        return Use(_shown(user), size_of(user, given, card), limit, devices_of(user, maps))


def _rivals(pod: Object, place: _OnNode) -> list[Object]:
    """The other reservations of the same group."""
    others = [other for group in groups_of_pod(pod) for other in place.holders[group] if other is not pod]
    return list({other["metadata"]["uid"]: other for other in others}.values())


def _is_mig(resource: str) -> bool:
    return resource.startswith(MIG_RESOURCE_PREFIX)


def _sorted(holdings: Iterable[Holding]) -> tuple[Holding, ...]:
    return tuple(sorted(holdings, key=lambda holding: holding.pod.name))


def _reservation(pod: Object) -> Reservation:
    device, shown = device_of(pod), _shown(pod)
    return Reservation(
        name=shown.name,
        phase=shown.phase,
        device=device if isinstance(device, str) else "",
        problem=device.message if isinstance(device, Failed) else "",
        mode=mode_of(pod),
    )
