"""Rules of GPUs that are shared: who holds them, for whom, and with which limit."""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations

from tests.chaos.history import Entry, History, Life, Object, State, key_of
from tests.chaos.rules.words import (
    GPU_INDEX,
    LIMIT,
    LIMITED,
    Finding,
    annotations_of,
    device_of,
    groups_of,
    groups_of_labels,
    is_over,
    live_reservations,
    live_users,
    maps_of,
    node_of,
    request_of,
    reservations,
    spec_of,
    users,
)


def users_have_one_reservation(history: History, state: State) -> Iterator[Finding]:
    """On its node each group that has users is held by one reservation pod, no more and no less."""
    held = Counter(
        (group, node_of(pod)) for pod in live_reservations(state) for group in groups_of_labels(pod)
    )
    for pod, groups in live_users(state):
        for group in sorted(groups):
            if held[group, node_of(pod)] != 1:
                number, keys = held[group, node_of(pod)], _keys_of_group(history, group)
                text = f"pod {pod['metadata']['name']} uses group {group}, which has {number} reservations"
                yield text, (key_of("pods", pod), *keys)


def reservations_have_users(history: History, state: State) -> Iterator[Finding]:
    """Nobody holds a GPU for a group that no pod uses there and no request is still to be bound for."""
    used = {(group, node_of(pod)) for pod, groups in live_users(state) for group in groups}
    wanted = {group for item in state.of("bindrequests") if not is_over(item) for group in groups_of(item)}
    for pod in live_reservations(state):
        groups = groups_of_labels(pod)
        if not any((group, node_of(pod)) in used for group in groups) and not groups & wanted:
            text = f"reservation {pod['metadata']['name']} of group {', '.join(groups)} has no user"
            yield text, (key_of("pods", pod), *_requests_of(history, groups))


def a_group_is_one_card(history: History, state: State) -> Iterator[Finding]:
    """Pods of a group that live at a time are told one device, and no two groups of a node have the same."""
    everybody = users(history)
    for one, other in combinations(everybody, 2):
        if one.node != other.node or not one.lives_with(other):
            continue
        theirs = dict(zip(other.groups, other.devices, strict=False))
        for group, device in zip(one.groups, one.devices, strict=False):
            if theirs.get(group, device) != device:
                text = f"group {group} is device {device} for pod {one.pod.key[2]}, and {theirs[group]} for "
                yield f"{text}pod {other.pod.key[2]}", (one.pod.key, other.pod.key)
    cards: dict[tuple[str, str], str] = {}
    for pod in live_reservations(state):
        device, names = annotations_of(pod).get(GPU_INDEX, ""), sorted(groups_of_labels(pod))
        group = names[0] if names else ""
        if device and cards.setdefault((node_of(pod), device), group) != group:
            text = f"groups {group} and {cards[node_of(pod), device]} both are device {device}"
            yield f"{text} of node {node_of(pod)}", (key_of("pods", pod),)


def a_pod_has_one_node(history: History, state: State) -> Iterator[Finding]:
    """A pod is bound once, and the devices that it is told are reserved on that node."""
    times = Counter(str(entry.sent["metadata"].get("uid", "")) for entry in history.bindings())
    for entry in history.bindings():
        if times[str(entry.sent["metadata"].get("uid", ""))] > 1:
            yield f"pod {entry.key[2]} was bound more than once", (entry.key,)
    held = reservations(history)
    for user in users(history):
        for group, device in zip(user.groups, user.devices, strict=False):
            of_device = [life for life in held if group in groups_of_labels(life.first)]
            of_device = [life for life in of_device if device_of(life) == device]
            nodes = {node_of(life.last()) for life in of_device}
            if nodes and user.node not in nodes:
                text = f"pod {user.pod.key[2]} is on node {user.node}, but was told device {device} of node "
                yield f"{text}{', '.join(nodes)}", (user.pod.key, *(life.key for life in of_device))


def pods_are_bound_as_decided(history: History, state: State) -> Iterator[Finding]:
    """Each Binding by the binder is what a request for this very pod says."""
    for binding in history.bindings():
        if not binding.by_binder:
            continue
        request, node = request_of(history, binding), binding.sent["target"]["name"]
        if request is None:
            yield f"pod {binding.key[2]} was bound, though no request is for it", (binding.key,)
        elif spec_of(request)["selectedNode"] != node:
            text = f"pod {binding.key[2]} was bound to node {node}, but its request says "
            yield text + spec_of(request)["selectedNode"], (binding.key, key_of("bindrequests", request))


def pods_are_bound_with_their_limit(history: History, state: State) -> Iterator[Finding]:
    """A pod that must have a limit of GPU memory finds it in its ConfigMap when it gets its node."""
    for binding in history.bindings():
        pod = history.life("pods", str(binding.sent["metadata"].get("uid", "")))
        wanted = annotations_of(pod.first).get(LIMITED) if pod is not None else None
        if pod is None or wanted is None:
            continue
        maps = maps_of(history, pod)
        if wanted not in (found := _limits(pod, maps, binding, state)):
            text = f"pod {pod.key[2]} was bound with limit {', '.join(found) or 'none'} instead of {wanted}"
            yield text, (pod.key, *(life.key for life in maps))


def _limits(pod: Life, maps: list[Life], binding: Entry, state: State) -> list[str]:
    """The limits that a pod's maps may have held when it was bound."""
    variables = spec_of(pod.first)["containers"][0].get("env") or ()
    sources = [item["valueFrom"]["configMapKeyRef"]["name"] for item in variables if item["name"] == LIMIT]
    found = []
    for life in maps:
        if life.key[2] not in sources or life.gone_s < binding.at_s:
            continue
        versions = list(life.versions(binding.at_s))[-1:]
        if any(entry.code == 0 for entry in life.entries):  # it may be one whose answer was lost
            last: Object | None = state.get(*life.key)
            versions += [last] if last else []
        found += [str((item.get("data") or {}).get(LIMIT, "")) for item in versions]
    return found


def _keys_of_group(history: History, group: str) -> list[tuple[str, str, str]]:
    return [life.key for life in reservations(history) if group in groups_of_labels(life.first)]


def _requests_of(history: History, groups: set[str]) -> list[tuple[str, str, str]]:
    return [life.key for life in history.of("bindrequests") if groups & set(groups_of(life.first))]
