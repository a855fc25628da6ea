"""Histories as they might have been, made up for tests of the auditor.

A story keeps a small world: each write changes it, and leaves the entry that the audit log would have of it.
What a test wants to be wrong it writes into the story.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from tests.chaos.history import BINDER, Entry, History, Key, Object, State
from tests.chaos.rules.words import (
    DEVICES,
    EXPECTED,
    GPU_INDEX,
    GROUP_LABEL,
    LEASE,
    LIMIT,
    LIMITED,
    RESERVATIONS,
)

FIRST = f"{BINDER}0.1 (host; pid 1)"
SECOND = f"{BINDER}0.1 (host; pid 2)"
ADMIN = "python/3"
TEAM = "team"
STEP_S = 1.0


class Story:
    """A history in the making."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0
        self.entries: list[Entry] = []
        self._world: dict[Key, Object] = {}
        self._version = 0
        self.lead(FIRST)

    @property
    def history(self) -> History:
        return History(self.entries)

    @property
    def state(self) -> State:
        kinds: dict[str, list[Object]] = {}
        for key, item in self._world.items():
            kinds.setdefault(key[0], []).append(item)
        return State(kinds)

    def write(self, agent: str, verb: str, key: Key, **fields: Any) -> Entry:  # noqa: ANN401
        """Any entry; the world is not changed."""
        self.now_s += STEP_S
        given = {"at_s": self.now_s, "done_s": self.now_s + STEP_S / 10, "code": 200, **fields}
        entry = Entry(agent=agent, verb=verb, key=key, **given)
        self.entries.append(entry)
        return entry

    def put(self, agent: str, key: Key, item: Object, verb: str = "update", subresource: str = "") -> Object:
        """Makes an object, or changes it to this."""
        self._version += 1
        old = self._world.get(key, {"metadata": {"uid": f"uid-{'-'.join(key)}-{self._version}"}})
        metadata = {"name": key[2], "namespace": key[1], "uid": old["metadata"]["uid"], "generation": 1}
        whole = {**deepcopy(item), "metadata": {**metadata, **item.get("metadata", {})}}
        whole["metadata"]["resourceVersion"] = str(self._version)
        self._world[key] = whole
        self.write(agent, verb, key, subresource=subresource, got=deepcopy(whole))
        return whole

    def change(self, agent: str, key: Key, **fields: object) -> Object:
        """Changes some fields of an object: its spec, status or metadata, each added to."""
        old = self._world[key]
        new = {
            name: {**old.get(name, {}), **value} for name, value in fields.items() if isinstance(value, dict)
        }
        return self.put(agent, key, {**old, **new}, "patch", "status" if "status" in fields else "")

    def delete(self, agent: str, key: Key) -> None:
        """Removes an object."""
        gone = self._world.pop(key)
        self.write(agent, "delete", key, got=gone)

    def vanish(self, key: Key) -> None:
        """Removes an object without a trace."""
        del self._world[key]

    def get(self, key: Key) -> Object:
        return self._world[key]

    def lead(self, agent: str) -> None:
        """Gives a process the lease."""
        self.put(agent, LEASE, {"spec": {"holderIdentity": agent}})

    def node(self, name: str) -> None:
        self.put(ADMIN, ("nodes", "", name), {}, "create")

    def pod(self, name: str, *, limit: str = "") -> Object:
        """A pod of a user; with a limit, one with a share of a GPU."""
        source = {"configMapKeyRef": {"name": f"{name}-map", "key": LIMIT}}
        container: Object = {"name": "main", "env": [{"name": LIMIT, "valueFrom": source}] if limit else []}
        annotations = {LIMITED: limit} if limit else {}
        item: Object = {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}
        return self.put(ADMIN, ("pods", TEAM, name), item, "create")

    def request(self, name: str, node: str, *groups: str, expected: str = "Bound", limit: int = 0) -> Object:
        """A request for the pod of its name, if there is one."""
        pod = self._world.get(("pods", TEAM, name))
        owners = [{"kind": "Pod", "name": name, "uid": pod["metadata"]["uid"]}] if pod else []
        spec: Object = {"podName": name, "selectedNode": node, "receivedResourceType": "Regular"}
        if groups:
            spec |= {"receivedResourceType": "Fraction", "selectedGPUGroups": list(groups)}
        if limit:
            spec["backoffLimit"] = limit
        metadata = {"annotations": {EXPECTED: expected}, "ownerReferences": owners}
        return self.put(ADMIN, ("bindrequests", TEAM, name), {"metadata": metadata, "spec": spec}, "create")

    def reserve(self, agent: str, group: str, node: str, device: str, name: str = "") -> Key:
        """A reservation that has named its device."""
        key = ("pods", RESERVATIONS, name or f"reservation-{group}")
        spec = {"nodeName": node, "containers": [{"name": "main"}]}
        self.put(agent, key, {"metadata": {"labels": {GROUP_LABEL: group}}, "spec": spec}, "create")
        self.change(ADMIN, key, metadata={"annotations": {GPU_INDEX: device}})
        return key

    def config_map(self, agent: str, pod: str, data: Mapping[str, str]) -> Key:
        """The map of a pod."""
        owner = {"kind": "Pod", "name": pod, "uid": self._world["pods", TEAM, pod]["metadata"]["uid"]}
        key = ("configmaps", TEAM, f"{pod}-map")
        self.put(agent, key, {"metadata": {"ownerReferences": [owner]}, "data": dict(data)}, "create")
        return key

    def bind(self, agent: str, name: str, node: str, *groups: str) -> None:
        """Gives a pod its node, and tells it so."""
        key = ("pods", TEAM, name)
        pod = self._world[key]
        sent = {"metadata": {"uid": pod["metadata"]["uid"]}, "target": {"name": node}}
        self.write(agent, "create", key, subresource="binding", sent=sent, code=201)
        labels = {f"{GROUP_LABEL}/{group}": group for group in groups}
        pod["spec"]["nodeName"] = node
        pod["metadata"]["labels"] = labels
        told = {"type": "PodBound", "status": "True", "reason": "Bound"}
        self.change(agent, key, status={"conditions": [told]})

    def succeed(self, agent: str, name: str) -> None:
        """Says of a request that its pod is bound, and sends the event."""
        conditions = [{"type": "Bound", "status": "True", "reason": "Reconciled"}]
        status = {"phase": "Succeeded", "observedGeneration": 1, "conditions": conditions}
        self.change(agent, ("bindrequests", TEAM, name), status=status)
        self.event(agent, name)

    def event(self, agent: str, pod: str) -> None:
        uid = self._world["pods", TEAM, pod]["metadata"]["uid"]
        about = {"kind": "Pod", "name": pod, "uid": uid}
        sent = {"reason": "Bound", "involvedObject": about}
        self.write(agent, "create", ("events", TEAM, f"{pod}.1"), sent=sent, code=201)

    def fail(self, agent: str, name: str, reason: str, attempts: int = 1) -> None:
        """Says of a request, and of its pod if there is one, that an attempt failed."""
        conditions = [{"type": "Bound", "status": "False", "reason": reason}]
        status = {"phase": "Failed", "reason": f"Bound {reason}: because", "failedAttempts": attempts}
        status |= {"observedGeneration": 1, "conditions": conditions}
        self.change(agent, ("bindrequests", TEAM, name), status=status)
        if ("pods", TEAM, name) in self._world:
            told = {"type": "PodBound", "status": "False", "reason": "BindingError"}
            self.change(agent, ("pods", TEAM, name), status={"conditions": [told]})

    def share(self, agent: str, name: str, node: str, group: str, device: str, limit: str = "100m") -> None:
        """A pod with a share of a GPU that is reserved already, from its creation to its end."""
        self.pod(name, limit=limit)
        self.request(name, node, group)
        self.config_map(agent, name, {DEVICES: device, LIMIT: limit})
        self.bind(agent, name, node, group)
        self.succeed(agent, name)


def clean() -> Story:
    """All goes well: a plain pod, two pods that share a GPU, a bad request, a claim, two leaders."""
    story = Story()
    story.node("n1")
    story.node("n2")
    story.pod("plain")
    story.request("plain", "n1")
    story.bind(FIRST, "plain", "n1")
    story.succeed(FIRST, "plain")
    story.reserve(FIRST, "g", "n1", "GPU-1")
    story.share(FIRST, "a", "n1", "g", "GPU-1")
    story.pod("bad")
    story.request("bad", "nowhere", expected="NodeGone", limit=2)
    story.fail(FIRST, "bad", "NodeGone", 1)
    story.fail(FIRST, "bad", "NodeGone", 2)
    uid = story.get(("pods", TEAM, "plain"))["metadata"]["uid"]
    claim = {"status": {"allocation": {"devices": {}}, "reservedFor": [{"name": "plain", "uid": uid}]}}
    story.put(FIRST, ("resourceclaims", TEAM, "card"), claim)
    story.lead(SECOND)
    story.share(SECOND, "b", "n1", "g", "GPU-1")
    story.reserve(SECOND, "h", "n1", "GPU-2")
    story.share(SECOND, "c", "n1", "h", "GPU-2")
    story.delete(ADMIN, ("pods", TEAM, "c"))
    story.delete(ADMIN, ("configmaps", TEAM, "c-map"))
    story.delete(ADMIN, ("bindrequests", TEAM, "c"))
    story.delete(SECOND, ("pods", RESERVATIONS, "reservation-h"))
    return story
