"""Following one kind: a list, then a watch, for ever, whatever happens on the way (kube-rs' watcher).

Used by `cache.py`, which stores what is said here, and by `changes.py`, which passes it to those who wait.
Invariants: what is told, in its order, brings whoever listens from any state to the server's; a stream that
has gone mute is noticed within `WatchOptions.idle_s`; a version that the server does not follow up, for
whatever reason, is given up in the end for a new list.
"""

import random
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import anyio
from loguru import logger
from msgspec import Struct, field

from controller.runtime import errors
from controller.runtime.client import Client, Listed, Resource
from controller.runtime.watchevents import Advanced, Event, Refused, State, UnreadableError, parse
from controller.runtime.workqueue import Backoff

T = TypeVar("T")

_SHORT_WATCH_S = 1.0
"""A watch that ended sooner is taken up again with a delay, so as not to run hot."""

_STUCK_AFTER = 8
"""So many watches that broke at one version without a line, while the server answers otherwise: list anew."""


class WatchOptions(Struct, frozen=True, kw_only=True):
    """How the server is asked.

    Attributes:
        page_size: Objects in one answer to a list.
        watch_s: The server is asked to end each watch after about this time, with a bookmark.
        idle_s: Seconds without a byte after which a watch is taken for dead; more than `watch_s`.
        backoff_s: First delay after a failure; it doubles.
        max_backoff_s: The longest delay.
        refused_s: Seconds that a refusal must have lasted before it is believed.
    """

    page_size: int = 500
    watch_s: float = 20.0
    idle_s: float = 30.0
    backoff_s: float = 0.5
    max_backoff_s: float = 15.0
    refused_s: float = 30.0


DEFAULTS = WatchOptions()


class Pauses:
    """Delays between tries: they double while nothing works, and begin anew once something has."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._failures = 0

    def reset(self) -> None:
        """The next delay is the first one again."""
        self._failures = 0

    async def wait(self) -> None:
        """Waits for the next delay, or somewhat less: many who failed together should not come together."""
        self._failures += 1
        await anyio.sleep(self._backoff.delay_s(self._failures) * random.uniform(0.5, 1.0))  # noqa: S311


class _Health(Struct):
    """Since when what is the matter, in seconds of the clock."""

    alive_s: float = float("inf")
    broken_s: float | None = None
    refused_s: float | None = None
    problem: str = ""


class _Stream(Struct):
    """The watch under way."""

    started_s: float = field(default_factory=anyio.current_time)
    lines: int = 0

    @property
    def was_short(self) -> bool:
        return anyio.current_time() - self.started_s <= _SHORT_WATCH_S


class Watcher:
    """Follows one kind and tells what happens."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        tell: Callable[[Event], None],
        *,
        selectors: Mapping[str, str] | None = None,
        snapshot: Callable[[], Awaitable[Listed]] | None = None,
        options: WatchOptions = DEFAULTS,
    ) -> None:
        """Makes it; `run` follows.

        Args:
            client: Where to ask.
            resource: The kind.
            tell: Told of each event. It must not raise.
            selectors: `labelSelector` and `fieldSelector`, as query parameters.
            snapshot: Reads the whole; by default all objects that match the selectors.
            options: Page size and times.
        """
        self.version = ""
        """The resourceVersion up to which all is told; empty before the first list, and when it is lost."""
        self._client = client
        self._resource = resource
        self._tell = tell
        self._selectors = dict(selectors or {})
        self._snapshot = snapshot or self._list_all
        self._options = options
        self._pauses = Pauses(Backoff(options.backoff_s, options.max_backoff_s))
        self._health = _Health()
        self._stream = _Stream(0.0)
        self._stuck = 0

    def silent_s(self) -> float:
        """Seconds since `run` last gave a sign of life; 0 before it runs."""
        return max(0.0, anyio.current_time() - self._health.alive_s)

    def broken_s(self) -> float:
        """Seconds for which nothing could be followed; 0 while a watch is up, or before the first failure."""
        since_s = self._health.broken_s
        return anyio.current_time() - since_s if since_s is not None else 0.0

    @property
    def is_refused(self) -> bool:
        """Whether the server's last word was a refusal."""
        return self._health.refused_s is not None

    @property
    def problem(self) -> str:
        """What broke last; empty if nothing ever did."""
        return self._health.problem

    async def run(self, version: str = "") -> None:
        """Follows until cancelled.

        Args:
            version: The resourceVersion to begin after; empty begins with a list.
        """
        self.version = version
        state = State.WATCH if version else State.LIST
        while True:
            self.beat()
            try:
                state = await self._step(state)
            except errors.ApiError as error:
                state = self._after(error, state)
                await self._pauses.wait()

    def beat(self) -> None:
        """Gives a sign of life."""
        self._health.alive_s = anyio.current_time()

    async def _step(self, state: State) -> State:
        match state:
            case State.LIST:
                listed = await self._whole(self._list())
                self.version, self._stuck = listed.version, 0
                self._tell(listed)
                return State.WATCH
            case State.CHECK:
                return await self._check()
            case State.WATCH:
                return await self._watch()

    async def _list(self) -> Listed:
        listed = await self._snapshot()
        int(listed.version)
        return listed

    async def _list_all(self) -> Listed:
        return await self._client.list_all(
            self._resource, self._selectors, page_size=self._options.page_size, on_page=self.beat
        )

    async def server_version(self) -> int:
        """The resourceVersion that the server is at, at the price of one object.

        Raises:
            errors.ApiError: It was not told.
        """
        return await self._whole(self._version_of_a_page())

    async def _version_of_a_page(self) -> int:
        page = await self._client.list_page(self._resource, {"limit": "1"})
        return int(page["metadata"]["resourceVersion"])

    async def _whole(self, reading: Awaitable[T]) -> T:
        """The answer; one that is no list at all is a failure like others."""
        try:
            return await reading
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            text = f"the answer is no list: {type(error).__name__}: {error}"
            raise UnreadableError(f"LIST {self._resource.plural}", text) from error

    async def _check(self) -> State:
        version = await self.server_version()
        if version < int(self.version):
            logger.bind(kind=self._resource.plural, version=version, before=self.version).warning(
                "The API server is behind the version that was followed: listing anew"
            )
            return State.LIST
        if self._stuck:
            self._stuck += 1  # it is there: one more watch, then it is the version's fault
        return State.WATCH

    async def _watch(self) -> State:
        # Spread, so that the watches of many processes do not end in step.
        watch_s = self._options.watch_s * random.uniform(0.8, 1.0)  # noqa: S311
        params = {
            **self._selectors,
            "resourceVersion": self.version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(watch_s))),
        }
        stream = self._stream = _Stream()
        await self._client.watch(
            self._resource, params, self._on_line, on_open=self._on_open, idle_s=self._options.idle_s
        )
        if stream.was_short:
            self._stuck += not stream.lines
            await self._pauses.wait()
            return self._again()
        self._pauses.reset()
        self._stuck = 0
        # At its end a healthy watch brings a bookmark; one of a version from the future brings nothing.
        return State.WATCH if stream.lines else State.CHECK

    def _again(self) -> State:
        """After a watch that brought nothing."""
        if self._stuck < _STUCK_AFTER:
            return State.WATCH
        return State.CHECK if self._stuck == _STUCK_AFTER else State.LIST

    def _on_open(self) -> None:
        self._health.broken_s = self._health.refused_s = None
        self.beat()
        self._tell(Advanced(self.version))

    def _on_line(self, line: bytes) -> None:
        self.beat()
        event = parse(line, f"WATCH {self._resource.plural}")
        self.version = (
            event.version if isinstance(event, Advanced) else event.item["metadata"]["resourceVersion"]
        )
        if not self._stream.lines:
            self._pauses.reset()
        self._stream.lines += 1
        self._stuck = 0
        self._tell(event)

    def _after(self, error: errors.ApiError, state: State) -> State:
        """What to do after a failure."""
        now, health = anyio.current_time(), self._health
        if health.broken_s is None:
            health.broken_s = now
        health.problem = error.message
        if state is State.WATCH and not self._stream.was_short:
            self._pauses.reset()
        log = logger.bind(kind=self._resource.plural, error=error.message)
        match error:
            case errors.GoneError():
                # Someone compacted the history, or the server restarted: only a new list helps.
                return State.LIST
            case errors.ForbiddenError() | errors.NotFoundError():
                return self._refused(error, state)
            case UnreadableError():
                log.warning("A watch brought what is no event: listing anew")
                return State.LIST
        log.warning("A watch broke and is taken up again")
        if state is State.WATCH and not self._stream.lines:
            self._stuck += 1
        match state:
            case State.LIST:
                return State.LIST
            case State.CHECK:
                self._stuck = 0  # the server is away: that says nothing of the version
                return State.WATCH
            case State.WATCH:
                return self._again()

    def _refused(self, error: errors.StatusError, state: State) -> State:
        """A refusal of a moment costs nothing: the watch goes on where it was. One that lasts has us poll."""
        now = anyio.current_time()
        if self._health.refused_s is None:
            self._health.refused_s = now
        lasted_s = now - self._health.refused_s
        self._tell(Refused(error, State.LIST if state is State.LIST else State.WATCH, lasted_s))
        if state is State.WATCH and lasted_s < self._options.refused_s:
            return State.WATCH
        return State.LIST
