"""Answers that attempts share: one flight for all who ask at a time, kept for a moment.

Used by `reads`. Invariants: nobody gets an answer older than he asked for; that there is no such object is
told only to those who asked before it was found out, since it may have been made since; a failure is told to
those who wait for it and not kept; what is older than a moment is forgotten at the next question.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import anyio

from controller.runtime import errors

SHARED_S = 1.5
"""Seconds for which an answer is shared with those who do not ask for a newer one."""

_LIST_FROM = 6
"""Single objects asked for in a moment, from which on all are listed at once."""

_SINGLE_S = 60.0
"""Seconds for which there is no further try to list what was too much, or not allowed."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Flight(Generic[V]):
    """One question to the server, on its way or answered."""

    def __init__(self, started_s: float) -> None:
        self.started_s = started_s
        self.ended_s = float("inf")
        self.ended = anyio.Event()
        self.answer: list[V] = []
        self.error: errors.ApiError | None = None


class Shared(Generic[K, V]):
    """Answers by key."""

    def __init__(self, read: Callable[[K], Awaitable[V]]) -> None:
        """Makes it; `read` asks the server."""
        self._read = read
        self._flights: dict[K, _Flight[V]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    async def get(self, key: K, not_before_s: float | None = None) -> V:
        """The answer for a key.

        Args:
            key: What it is about.
            not_before_s: The moment, by anyio's clock, before which it must not have been asked for; None for
                whatever is being shared.

        Raises:
            errors.ApiError: The server does not say.
        """
        self.forget_old()
        asked_s = anyio.current_time()
        while True:
            flight = self._flights.get(key)
            if flight is None or (flight.ended.is_set() and not _serves(flight, not_before_s, asked_s)):
                return await self._ask(key)
            await flight.ended.wait()
            if not _serves(flight, not_before_s, asked_s):
                continue  # the next one is for all who wait here
            if flight.error is not None:
                raise flight.error
            if flight.answer:
                return flight.answer[0]

    def known(self, key: K, not_before_s: float | None = None) -> list[V]:
        """The answer without asking; empty if it would have to be asked for."""
        self.forget_old()
        flight, now_s = self._flights.get(key), anyio.current_time()
        return flight.answer if flight is not None and _serves(flight, not_before_s, now_s) else []

    def put(self, key: K, value: V) -> None:
        """Takes in the server's answer to a write of ours."""
        flight = _Flight[V](anyio.current_time())
        flight.answer, flight.ended_s = [value], flight.started_s
        flight.ended.set()
        self._flights.pop(key, None)
        self._flights[key] = flight

    def forget_old(self) -> None:
        """Drops what is not shared any more."""
        oldest_s = anyio.current_time() - SHARED_S
        old = []
        for key, flight in self._flights.items():  # the oldest first
            if flight.ended_s >= oldest_s:
                break
            old.append(key)
        for key in old:
            del self._flights[key]

    async def _ask(self, key: K) -> V:
        flight = _Flight[V](anyio.current_time())
        self._flights.pop(key, None)
        self._flights[key] = flight
        try:
            value = await self._read(key)
        except errors.ApiError as error:
            flight.error = error
            raise
        else:
            flight.answer.append(value)
            return value
        finally:
            # One who was broken off leaves neither answer nor error: the next who waits asks himself.
            if self._flights.get(key) is flight:
                del self._flights[key]
                if flight.answer:
                    self._flights[key] = flight
            flight.ended_s = anyio.current_time()
            flight.ended.set()


def _serves(flight: _Flight[V], not_before_s: float | None, asked_s: float) -> bool:
    """Whether the answer is new enough for a question that was asked at this time."""
    if not_before_s is not None:
        return flight.started_s >= not_before_s
    if flight.answer and flight.answer[0] is None:
        return flight.started_s >= asked_s
    return flight.ended_s >= anyio.current_time() - SHARED_S


Name = tuple[str, str]
"""Namespace (empty for kinds without one) and name."""


class SharedObjects(Generic[V]):
    """Single objects of a kind; when many are asked for in a moment, all of their namespace are listed.

    So a gang whose pods have claims of their own costs a few requests, and a pod beside it no list.
    """

    def __init__(
        self,
        read: Callable[[Name], Awaitable[V | None]],
        read_all: Callable[[str], Awaitable[dict[str, V] | None]],
    ) -> None:
        """Makes it.

        Args:
            read: Asks for one object; None if there is none.
            read_all: Asks for all of a namespace, by name; None if they are too many.
        """
        self._single = Shared(read)
        self._all = Shared(read_all)
        self._asked_s: dict[str, deque[float]] = {}
        self._single_until_s: dict[str, float] = {}

    async def get(self, key: Name, not_before_s: float | None = None) -> V | None:
        """One object; None if there is none. As `Shared.get`."""
        namespace, name = key
        asked_s = anyio.current_time()
        if found := self._single.known(key, not_before_s):
            return found[0]
        listed = self._all.known(namespace, not_before_s)
        everything = listed[0] if listed else None
        if everything is None and self._many_ask(namespace):
            try:
                everything = await self._all.get(namespace, not_before_s)
            except errors.ForbiddenError:
                everything = None
            if everything is None:
                self._single_until_s[namespace] = anyio.current_time() + _SINGLE_S
        if everything is not None and name in everything:
            return everything[name]
        # What a list does not have may have been made since.
        return await self._single.get(key, asked_s if everything is not None else not_before_s)

    def put(self, key: Name, value: V) -> None:
        """Takes in the server's answer to a write of ours."""
        self._single.put(key, value)

    def forget_old(self) -> None:
        """Drops what is not shared any more."""
        self._single.forget_old()
        self._all.forget_old()
        now_s = anyio.current_time()
        for namespace, asked_s in tuple(self._asked_s.items()):
            if asked_s[-1] < now_s - _SINGLE_S:
                del self._asked_s[namespace]
        for namespace, until_s in tuple(self._single_until_s.items()):
            if until_s < now_s:
                del self._single_until_s[namespace]

    def _many_ask(self, namespace: str) -> bool:
        """Counts a question; whether it is one of many of this moment."""
        now_s = anyio.current_time()
        asked_s = self._asked_s.setdefault(namespace, deque(maxlen=_LIST_FROM + 1))
        asked_s.append(now_s)
        if self._single_until_s.get(namespace, 0.0) > now_s:
            return False
        return len(asked_s) > _LIST_FROM and asked_s[0] >= now_s - SHARED_S


async def in_parallel(*works: Callable[[], Awaitable[V]]) -> list[V]:
    """What all of these return, in their order.

    Raises:
        errors.ApiError: The first that one of them raised; the others are broken off.
    """
    if len(works) == 1:
        return [await works[0]()]
    answers: dict[int, V] = {}
    failures: list[errors.ApiError] = []
    async with anyio.create_task_group() as tasks:

        async def run(number: int, work: Callable[[], Awaitable[V]]) -> None:
            try:
                answers[number] = await work()
            except errors.ApiError as error:
                failures.append(error)  # raised outside, where the task group cannot wrap it
                tasks.cancel_scope.cancel()

        for number, work in enumerate(works):
            tasks.start_soon(run, number, work)
    if failures:
        raise failures[0]
    return [answers[number] for number in range(len(works))]
