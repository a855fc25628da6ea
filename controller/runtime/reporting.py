"""What a controller tells people: conditions in a status, and events.

`merge_condition` is pure. The recorder never blocks and never fails its caller: events are for reading, and
nothing is decided by them.
"""

import socket
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal
from uuid import uuid4

import anyio
from loguru import logger
from msgspec import Struct

from controller.runtime import errors
from controller.runtime.client import Client, Object, Resource
from controller.runtime.texts import visible

EVENTS = Resource("v1", "events")
EVENT_MESSAGE_LIMIT = 1024
"""The server's limit, in bytes."""

_REMEMBERED = 4096
_NAMESPACE_OF_CLUSTER = "default"
"""Where events of objects without a namespace are written, as Go's recorder does."""
_ATTEMPTS = 3
_OFTEN, _SELDOM_S = 25, 300.0
"""An event that has come so often is written again after so many seconds; client-go's recorder drops it."""


def rfc3339(moment: datetime) -> str:
    """A point in time as metav1.Time is written."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def cut(text: str, limit: int) -> str:
    """The text, made visible, in at most `limit` bytes of UTF-8, with an ellipsis where it was longer."""
    encoded = visible(text).encode()
    if len(encoded) <= limit:
        return encoded.decode()
    return encoded[: limit - 3].decode(errors="ignore") + "…"


def merge_condition(previous: Sequence[Object], condition: Object, now: datetime) -> Object:
    """Dates a condition: `lastTransitionTime` moves only when `status` does.

    Args:
        previous: The conditions that the object has, any of which may be malformed.
        condition: type, status, reason, message and what else belongs to it; not changed.
        now: The time of a transition.

    Returns:
        The condition with its lastTransitionTime.
    """
    for old in previous:
        if isinstance(old, Mapping) and old.get("type") == condition["type"]:
            since = old.get("lastTransitionTime")
            if old.get("status") == condition["status"] and isinstance(since, str):
                return {**condition, "lastTransitionTime": since}
    return {**condition, "lastTransitionTime": rfc3339(now)}


def reference(item: Object, version: str, kind: str) -> dict[str, str]:
    """How an event names its object (core/v1 ObjectReference).

    Args:
        item: The object, or as much as is known of it: `metadata` with `name`.
        version: Its apiVersion, e.g. `v1`; objects out of a list do not say.
        kind: Its kind, e.g. `Pod`.
    """
    metadata = item["metadata"]
    known = {name: str(metadata[name]) for name in ("namespace", "name", "uid") if metadata.get(name)}
    return {"apiVersion": version, "kind": kind, **known}


class _Event(Struct, frozen=True):
    name: str
    regarding: Object
    kind: Literal["Normal", "Warning"]
    reason: str
    message: str

    @property
    def identity(self) -> tuple[str, str, str, str]:
        return str(self.regarding.get("uid", "")), self.kind, self.reason, self.message


class _Sent(Struct):
    """What was written of an event, and how often it has come since."""

    name: str
    count: int
    written_s: float
    since: int = 0


class EventRecorder:
    """Writes core/v1 Events behind the work; the same event again only raises its count.

    One that has come often is written again every few minutes only, if it still comes, with all that came
    meanwhile counted.
    """

    def __init__(self, client: Client, component: str, *, capacity: int = 10_000) -> None:
        self._client = client
        self._component = component
        self._capacity = capacity
        self._waiting: deque[_Event] = deque()  # without the one that is being sent
        self._sent: OrderedDict[tuple[str, str, str, str], _Sent] = OrderedDict()
        self._changed = anyio.Event()
        self._idle = anyio.Event()
        self._idle.set()

    def event(
        self, regarding: Mapping[str, str], kind: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None:
        """Notes an event about an object; the oldest is dropped if too many wait.

        Args:
            regarding: apiVersion, kind, namespace, name and, if known, uid of the object.
            kind: As `kubectl` shows it under Type.
            reason: One CamelCase word.
            message: A sentence; never taken for a format.
        """
        about = regarding.get("name", "")
        if not about:
            logger.bind(reason=reason, regarding=dict(regarding)).warning("An event is about no object")
            return
        if len(self._waiting) >= self._capacity:
            dropped = self._waiting.popleft()
            logger.bind(reason=dropped.reason, name=dropped.regarding["name"]).warning("An event was dropped")
        name = f"{about[:200].rstrip('.-')}.{uuid4().hex[:16]}"
        self._waiting.append(_Event(name, dict(regarding), kind, reason, cut(message, EVENT_MESSAGE_LIMIT)))
        self._idle = anyio.Event() if self._idle.is_set() else self._idle
        self._changed.set()

    async def run(self) -> None:
        """Sends what is noted, until cancelled."""
        while True:
            while self._waiting:
                await self._send(self._waiting.popleft())
            self._idle.set()
            self._changed = anyio.Event()
            await self._changed.wait()

    async def flush(self, timeout_s: float) -> None:
        """Waits until all that is noted is sent, but no longer than `timeout_s` seconds."""
        with anyio.move_on_after(timeout_s):
            await self._idle.wait()

    async def _send(self, event: _Event) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await self._write(event)
            except errors.ApiError as error:
                log = logger.bind(reason=event.reason, name=event.regarding["name"], error=error.message)
                if not error.transient or attempt == _ATTEMPTS:
                    log.warning("An event could not be written")
                    return
                await anyio.sleep(2.0 ** (attempt - 1))
            except Exception:
                log = logger.bind(reason=event.reason, name=event.regarding["name"])
                log.exception("An event cannot be sent")
                return
            else:
                return

    async def _write(self, event: _Event) -> None:
        now = rfc3339(datetime.now(UTC))
        namespace = event.regarding.get("namespace") or _NAMESPACE_OF_CLUSTER
        sent = self._sent.get(event.identity)
        if sent is not None:
            if sent.count >= _OFTEN and anyio.current_time() < sent.written_s + _SELDOM_S:
                sent.since += 1
                return
            count = sent.count + sent.since + 1
            try:
                delta: Object = {"count": count, "lastTimestamp": now}
                await self._client.patch(EVENTS, sent.name, delta, namespace, is_brief=True)
            except errors.NotFoundError:
                del self._sent[event.identity]  # events expire after an hour: begin a new one
            else:
                sent.count, sent.since, sent.written_s = count, 0, anyio.current_time()
                return
        body: Object = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": event.name, "namespace": namespace},
            "involvedObject": event.regarding,
            "type": event.kind,
            "reason": event.reason,
            "message": event.message,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": socket.gethostname(),
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        with suppress(errors.AlreadyExistsError):  # an earlier try came through, its answer did not
            await self._client.create(EVENTS, body, namespace, is_brief=True)
        self._sent[event.identity] = _Sent(event.name, 1, anyio.current_time())
        if len(self._sent) > _REMEMBERED:
            self._sent.popitem(last=False)
