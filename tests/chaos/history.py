"""What happened, as the API server wrote it down: its audit log as entries, and what was there in the end.

Read by the rules, which judge by nothing else. Invariant: an entry that was received but never answered in
the log (the server was killed) stays in it with code 0, since it may have been carried out all the same.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

Object = dict[str, Any]
Key = tuple[str, str, str]
"""Resource, namespace and name; those of an object that belongs to no namespace have an empty one."""

BINDER = "kai-binder/"
"""How the user agents of binders begin; the rest tells one process from the other."""

POLICY: Object = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitManagedFields": True,
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "None", "resources": [{"group": "coordination.k8s.io"}], "namespaces": ["kube-system"]},
        {"level": "None", "resources": [{"group": "", "resources": ["secrets", "serviceaccounts/token"]}]},
        {"level": "RequestResponse", "omitStages": ["ResponseStarted"]},
    ],
}
"""All writes, whole; no reads. It keeps the stage RequestReceived, see above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One write.

    Attributes:
        at_s: When the server received it, in seconds since 1970.
        done_s: When it had answered; infinite if that is not known.
        agent: The user agent, by which processes are told apart.
        verb: As Kubernetes' authorization calls it.
        key: Of the object.
        subresource: Or empty.
        code: The HTTP status; 0 if it is not known.
        sent: The body of the request.
        got: The body of the answer.
    """

    at_s: float
    done_s: float
    agent: str
    verb: str
    key: Key
    subresource: str = ""
    code: int = 0
    sent: Object = field(default_factory=dict)
    got: Object = field(default_factory=dict)

    @property
    def succeeded(self) -> bool:
        """Whether it was certainly carried out."""
        return 200 <= self.code < 300

    @property
    def may_have_happened(self) -> bool:
        """Whether it was, or nobody knows."""
        return self.succeeded or self.code == 0 or self.code >= 500

    @property
    def by_binder(self) -> bool:
        return self.agent.startswith(BINDER)

    @property
    def object(self) -> Object | None:
        """The object as this write left it, where the answer says so."""
        whole = self.succeeded and self.verb != "delete" and "metadata" in self.got
        return self.got if whole and self.got.get("kind") != "Status" else None

    @property
    def uid(self) -> str:
        """Of the object that was written, as far as request or answer say so."""
        return str(
            (self.got.get("metadata") or {}).get("uid")
            or (self.got.get("details") or {}).get("uid")
            or (self.sent.get("preconditions") or {}).get("uid")
            or (self.sent.get("metadata") or {}).get("uid")
            or ""
        )


@dataclass(frozen=True, slots=True)
class Life:
    """One object from its beginning to its end; those of one name follow each other.

    Attributes:
        key: Its name.
        uid: Its uid.
        born_s: When it certainly was there.
        perhaps_gone_s: From when on it may have been deleted, or finished if it is a pod.
        gone_s: From when on it certainly was deleted.
        entries: All writes to it.
    """

    key: Key
    uid: str
    born_s: float
    perhaps_gone_s: float
    gone_s: float
    entries: tuple[Entry, ...]

    @property
    def first(self) -> Object:
        """As it was made."""
        return self.entries[0].got

    def versions(self, before_s: float = float("inf")) -> Iterator[Object]:
        """What it has been, up to a moment, oldest first."""
        for entry in self.entries:
            if entry.done_s <= before_s and entry.object is not None:
                yield entry.object

    def last(self, before_s: float = float("inf")) -> Object:
        """What it was at a moment."""
        return list(self.versions(before_s))[-1]

    def lived_at(self, at_s: float) -> bool:
        """Whether it certainly was there at a moment."""
        return self.born_s < at_s < self.perhaps_gone_s


class History:
    """All writes, in the order in which they were received."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries: Sequence[Entry] = sorted(entries, key=lambda entry: entry.at_s)

    @classmethod
    def read(cls, log: Path) -> "History":
        """Reads an audit log that was written by `POLICY`."""
        return cls(_entries(log.read_text().splitlines()))

    def of(self, resource: str) -> list[Life]:
        """All objects of a kind that have ever been, in the order of their beginnings."""
        return self._lives[resource]

    def life(self, resource: str, uid: str) -> Life | None:
        """The object of this uid."""
        return self._by_uid.get((resource, uid))

    def about(self, *keys: Key) -> list[Entry]:
        """All writes to the objects of these names."""
        wanted = set(keys)
        return [entry for entry in self.entries if entry.key in wanted]

    def bindings(self) -> list[Entry]:
        """The writes that gave a pod its node."""
        return [entry for entry in self.entries if entry.subresource == "binding" and entry.succeeded]

    @cached_property
    def _by_uid(self) -> dict[tuple[str, str], Life]:
        return {(life.key[0], life.uid): life for lives in self._lives.values() for life in lives}

    @cached_property
    def _lives(self) -> dict[str, list[Life]]:
        by_key: dict[Key, list[Entry]] = defaultdict(list)
        for entry in self.entries:
            by_key[entry.key].append(entry)
        found: dict[str, list[Life]] = defaultdict(list)
        for key, entries in by_key.items():
            found[key[0]].extend(_lives_of(key, entries))
        for lives in found.values():
            lives.sort(key=lambda life: life.born_s)
        return found


class State:
    """What there was in the end, by kind."""

    def __init__(self, objects: Mapping[str, Sequence[Object]]) -> None:
        self._objects = objects

    def write(self, path: Path) -> None:
        """Writes it down beside the logs, for people."""
        path.write_text(json.dumps(self._objects, indent=1))

    def of(self, resource: str) -> Sequence[Object]:
        """All objects of a kind."""
        return self._objects.get(resource, ())

    def get(self, resource: str, namespace: str, name: str) -> Object | None:
        """One of them."""
        wanted = (resource, namespace, name)
        return next((item for item in self.of(resource) if key_of(resource, item) == wanted), None)


def key_of(resource: str, item: Object) -> Key:
    """An object's name, as entries have it."""
    metadata = item["metadata"]
    return resource, metadata.get("namespace", ""), metadata["name"]


def _lives_of(key: Key, entries: Sequence[Entry]) -> Iterator[Life]:
    """Splits the writes to one name into those to each object that had it."""
    uids = list(dict.fromkeys(entry.object["metadata"]["uid"] for entry in entries if entry.object))
    for uid in uids:
        versions = [entry for entry in entries if entry.object and entry.object["metadata"]["uid"] == uid]
        born_s = min(entry.done_s for entry in versions)
        if versions[0].verb != "create":  # the answer to that is lost, but the object says when it was
            born_s = min(born_s, _created_s(versions[0].got))
        after = [
            entry
            for entry in entries
            if entry not in versions and entry.uid in ("", uid) and entry.done_s >= born_s
        ]
        ends = [entry.at_s for entry in after if entry.verb == "delete" and entry.may_have_happened]
        ends += [entry.at_s for entry in versions if _has_ended(entry.object or {})]
        writes = sorted((*versions, *after), key=lambda entry: entry.done_s)
        # What the log does not show as made was made before it began, or by a write whose answer is lost.
        first = next(index for index, entry in enumerate(writes) if entry.object)
        gone = [entry.done_s for entry in after if entry.verb == "delete" and entry.succeeded]
        perhaps_gone_s, gone_s = (min(moments, default=float("inf")) for moments in (ends, gone))
        yield Life(key, uid, born_s, perhaps_gone_s, gone_s, tuple(writes[first:]))


def _created_s(item: Object) -> float:
    """When an object certainly was there by its own word, which counts whole seconds."""
    text = item["metadata"].get("creationTimestamp")
    return _seconds(text) + 1.0 if text else float("inf")


def _has_ended(item: Object) -> bool:
    finished = (item.get("status") or {}).get("phase") in ("Succeeded", "Failed") and "containers" in (
        item.get("spec") or {}
    )
    return finished or bool(item["metadata"].get("deletionTimestamp"))


def _entries(lines: Iterable[str]) -> Iterator[Entry]:
    """One entry for each request: as it was answered, or else as it was received."""
    received: dict[str, Object] = {}
    for line in lines:
        try:
            event: Object = json.loads(line)
        except json.JSONDecodeError:
            continue  # written by half when the server was killed
        if event["stage"] in ("RequestReceived", "ResponseComplete", "Panic") and event.get("objectRef"):
            received[event["auditID"]] = {**received.get(event["auditID"], {}), **event}
    yield from map(_entry, received.values())


def _entry(event: Object) -> Entry:
    reference, complete = event["objectRef"], event["stage"] == "ResponseComplete"
    sent, got = (_body(event.get(name)) for name in ("requestObject", "responseObject"))
    # A create names nothing; who makes an object with a generated name learns it from the answer.
    name = reference.get("name") or (got.get("metadata") or sent.get("metadata") or {}).get("name", "")
    return Entry(
        at_s=_seconds(event["requestReceivedTimestamp"]),
        done_s=_seconds(event["stageTimestamp"]) if complete else float("inf"),
        agent=event.get("userAgent", ""),
        verb=event["verb"],
        key=(reference.get("resource", ""), reference.get("namespace", ""), name),
        subresource=reference.get("subresource", ""),
        code=int((event.get("responseStatus") or {}).get("code", 0)) if complete else 0,
        sent=sent,
        got=got,
    )


def _body(value: object) -> Object:
    """A body; a JSON patch is a list, of which nothing is asked."""
    if isinstance(value, dict):
        return value
    return {"patch": value} if value is not None else {}


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def clock(at_s: float) -> str:
    """A moment as people read it."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S.%f")[:-3]
