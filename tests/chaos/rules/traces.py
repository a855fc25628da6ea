"""Rules of what is left behind, and of what was taken away."""

from collections.abc import Iterator

from tests.chaos.history import Entry, History, Key, Life, State, key_of
from tests.chaos.rules.words import (
    LEASE,
    RESERVATIONS,
    Finding,
    User,
    annotations_of,
    device_of,
    groups_of,
    groups_of_labels,
    is_fraction,
    node_of,
    owner_uid,
    reservations,
    status_of,
    users,
)

PROTECTION = "resource.kubernetes.io/delete-protection"
EXTENDED = "resource.kubernetes.io/extended-resource-claim"
TAKEN_BACK_WITHIN_S = 15.0
"""So long a process may take to undo what it did for a request that was deleted."""
WATCHED = ("pods", "bindrequests", "configmaps", "resourceclaims", "persistentvolumeclaims")


def no_config_map_is_left(history: History, state: State) -> Iterator[Finding]:
    """A pod's maps are there only if it is on a node."""
    bound = _bound(state)
    for item in state.of("configmaps"):
        owner = owner_uid(item)
        if owner and owner not in bound and not _abandoned(history, owner, key_of("configmaps", item)):
            text = f"ConfigMap {item['metadata']['name']} is left, though its pod is on no node"
            yield text, (key_of("configmaps", item), *_key_of_pod(history, owner))


def no_label_is_left(history: History, state: State) -> Iterator[Finding]:
    """A pod that waits belongs to no GPU group."""
    for pod in state.of("pods"):
        groups = groups_of_labels(pod)
        if groups and not node_of(pod) and not _abandoned(history, pod["metadata"]["uid"]):
            text = f"pod {pod['metadata']['name']} is on no node, but has labels of {', '.join(groups)}"
            yield text, (key_of("pods", pod),)


def no_claim_is_left(history: History, state: State) -> Iterator[Finding]:
    """Device claims are reserved for pods on nodes, and have devices only then."""
    bound = _bound(state)
    for claim in state.of("resourceclaims"):
        name, key = claim["metadata"]["name"], key_of("resourceclaims", claim)
        reserved = [user["uid"] for user in status_of(claim).get("reservedFor") or ()]
        strangers = [uid for uid in reserved if uid not in bound and not _abandoned(history, uid, key)]
        keys = (key, *(found for uid in strangers for found in _key_of_pod(history, uid)))
        if strangers:
            yield f"claim {name} is reserved for a pod that is on no node", keys
        elif status_of(claim).get("allocation") and not reserved:
            yield f"claim {name} has devices, but nobody uses it", keys
        elif annotations_of(claim).get(EXTENDED) and owner_uid(claim) not in bound:
            yield f"claim {name} is left, though its pod is on no node", keys


def no_finalizer_is_left(history: History, state: State) -> Iterator[Finding]:
    """Nothing hangs in its deletion, and only claims with devices are protected."""
    for resource in WATCHED:
        for item in state.of(resource):
            if item["metadata"].get("deletionTimestamp"):
                text = f"{resource} {item['metadata']['name']} hangs in its deletion: "
                yield f"{text}{item['metadata'].get('finalizers')}", (key_of(resource, item),)
    for claim in state.of("resourceclaims"):
        protected = PROTECTION in (claim["metadata"].get("finalizers") or ())
        if protected and not status_of(claim).get("allocation"):
            text = f"claim {claim['metadata']['name']} is protected, though it has no devices"
            yield text, (key_of("resourceclaims", claim),)


def nothing_used_is_deleted(history: History, state: State) -> Iterator[Finding]:
    """The binder deletes no reservation, map, claim or pod in use, and no request but a broken one."""
    everybody = users(history)
    by_uid = {user.pod.uid: user for user in everybody}
    bound = {str(entry.sent["metadata"].get("uid", "")): entry.done_s for entry in history.bindings()}
    for entry in history.entries:
        if entry.verb != "delete" or not entry.by_binder or not entry.succeeded:
            continue
        life = _deleted(history, entry)
        if life is None:
            continue
        resource, namespace, name = entry.key
        if resource == "pods" and namespace == RESERVATIONS:
            for user in everybody:
                if _holds_for(life, user, entry):
                    text = f"reservation {name} was deleted while pod {user.pod.key[2]} used its GPU"
                    yield text, (entry.key, user.pod.key)
        elif resource == "pods":
            yield from _evicted(history, by_uid.get(life.uid), entry)
        elif resource == "bindrequests":
            if not is_fraction(life.first) or groups_of(life.first):
                yield f"request {name} was deleted by the binder", (entry.key,)
        elif resource in ("configmaps", "resourceclaims"):
            pod = history.life("pods", owner_uid(life.first))
            if pod and pod.lived_at(entry.at_s) and bound.get(pod.uid, entry.at_s) < entry.at_s:
                yield f"{resource} {name} was deleted under pod {pod.key[2]}", (entry.key, pod.key)
        else:
            yield f"{resource} {name} was deleted by the binder", (entry.key,)


def _holds_for(reservation: Life, user: User, entry: Entry) -> bool:
    """Whether a pod certainly had the GPU of a reservation that was certainly alive when it was deleted."""
    device = device_of(reservation)
    return (
        user.bound_s < entry.at_s < entry.done_s < user.pod.perhaps_gone_s
        and bool(groups_of_labels(reservation.first) & set(user.groups))
        and node_of(reservation.first) == user.node
        and (not user.devices or device in user.devices)
        and reservation.perhaps_gone_s >= entry.at_s
    )


def _evicted(history: History, user: User | None, entry: Entry) -> Iterator[Finding]:
    """A running pod is deleted only once its GPU is not held for it any more."""
    held = {
        group
        for life in reservations(history)
        if life.born_s < entry.at_s and life.perhaps_gone_s > entry.done_s
        for group in groups_of_labels(life.first)
        if user is not None and node_of(life.first) == user.node
    }
    if user is None or held >= set(user.groups):
        yield f"pod {entry.key[2]} was deleted by the binder, though its GPU was held for it", (entry.key,)


def _deleted(history: History, entry: Entry) -> Life | None:
    """What a deletion was of."""
    found = [life for life in history.of(entry.key[0]) if life.key == entry.key and entry in life.entries]
    return found[0] if found else None


def _abandoned(history: History, pod_uid: str, *keys: Key) -> bool:
    """Whether nobody is left who could know of an attempt: it was broken off by the end of its process.

    And the request was deleted before another process saw it. What is left goes with the pod, or is used by
    the next request for it.

    Args:
        history: All writes.
        pod_uid: Of the pod that was to be bound.
        keys: What else was written for it.
    """
    requests = [life for life in history.of("bindrequests") if owner_uid(life.first) == pod_uid]
    pod = history.life("pods", pod_uid)
    if pod is None or not requests or requests[-1].perhaps_gone_s == float("inf"):
        return False
    deleted_s = requests[-1].perhaps_gone_s
    about = history.about(pod.key, *keys, *(life.key for life in requests))
    workers = [entry.agent for entry in about if entry.by_binder]
    turns = [entry for entry in history.about(LEASE) if entry.succeeded and entry.agent in workers[-1:]]
    return not any(turn.at_s > deleted_s + TAKEN_BACK_WITHIN_S for turn in turns)


def _bound(state: State) -> set[str]:
    """The uids of the pods that are on a node."""
    return {pod["metadata"]["uid"] for pod in state.of("pods") if node_of(pod)}


def _key_of_pod(history: History, uid: str) -> list[tuple[str, str, str]]:
    pod = history.life("pods", uid)
    return [pod.key] if pod is not None else []
