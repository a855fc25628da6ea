"""Which claims hold which devices: the last look before a claim is given its own; for this package.

Neither the API server nor KAI's scheduler sees to it that no two claims have one device: the scheduler does
not count what a request for extended resources is about to get. Invariants: of two attempts of this process
that give a device away, the second looks after the first has written, and knows what that wrote, which a list
may not have yet; a list may be old, so that a claim is called a rival only after a live read.
"""

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
from msgspec import Struct

from controller.kai.outcome import Failed
from controller.plugins.claims.api import ClaimApi
from controller.plugins.claims.model import Device, allocation_of, device_of, exclusive
from controller.plugins.claims.verdicts import taken_failure
from controller.runtime.cache import Key, key_of
from controller.runtime.client import Object
from controller.runtime.locks import KeyedLock, Waiting

LIST_KEPT_S = 1.5
"""Seconds from its beginning for which a list is good, at least."""

_KEPT_TIMES = 20.0
"""So many times as long as it took a list is good: with many claims it costs much, and is about what others
than this process gave away, such as kube-scheduler."""

_MOST_S = 60.0


class _Listed(Struct, frozen=True):
    """What a list of all claims said, when it was asked for, and until when it is good."""

    began_s: float
    until_s: float
    holders: dict[Device, list[Key]]


class Holders:
    """The holders of all devices, as far as needed."""

    def __init__(self, api: ClaimApi) -> None:
        self._api = api
        self._giving: KeyedLock[Device] = KeyedLock()
        self._listing = anyio.Lock()
        self._listed = _Listed(float("-inf"), float("-inf"), {})
        # What attempts wrote, or may have written, since the list was asked for: by whom, and when.
        self._written: defaultdict[Device, dict[Key, float]] = defaultdict(dict)

    @asynccontextmanager
    async def giving(
        self, claim: Object, wanted: Object, node_name: str, waiting: Waiting
    ) -> AsyncIterator[Failed | None]:
        """The block in which a claim is given devices, and nobody else in this process gives these away.

        Args:
            claim: The claim, which has none yet.
            wanted: Its allocation.
            node_name: For messages.
            waiting: Around a wait for another attempt that gives one of them away.

        Yields:
            Why it must not get them; None if no other claim has one.

        Raises:
            NotServedError, errors.ApiError: It cannot be found out.
        """
        devices = frozenset(map(device_of, exclusive(wanted)))
        async with AsyncExitStack() as stack:
            for device in sorted(devices):  # in one order, or two might wait for each other
                await stack.enter_async_context(self._giving.hold(device, waiting))
            failure = await self._failure(claim, wanted, devices, node_name) if devices else None
            try:
                yield failure
            finally:
                for device in devices if failure is None else ():
                    self._written[device][key_of(claim)] = anyio.current_time()

    async def _failure(
        self, claim: Object, wanted: Object, devices: frozenset[Device], node_name: str
    ) -> Failed | None:
        await self._look()
        held, written = self._listed.holders, self._written
        suspects = {name for device in devices for name in (*held.get(device, ()), *written.get(device, ()))}
        for namespace, name in sorted(suspects - {key_of(claim)}):
            other = await self._api.get(namespace, name)
            failure = taken_failure(claim, wanted, other, node_name)
            if failure is not None:
                return failure
        return None

    async def _look(self) -> None:
        """Has a list that is good still; all who want one wait for the same."""
        async with self._listing:
            if anyio.current_time() > self._listed.until_s:
                self._listed = await self._list()
                self._forget(self._listed.began_s)

    def _forget(self, until_s: float) -> None:
        """Forgets what was written before: the list has it."""
        for device, names in [*self._written.items()]:
            for name in [name for name, ended_s in names.items() if ended_s < until_s]:
                del names[name]
            if not names:
                del self._written[device]

    async def _list(self) -> _Listed:
        holders: defaultdict[Device, list[Key]] = defaultdict(list)

        def keep(claim: Object) -> None:
            for result in exclusive(allocation_of(claim) or {}):
                holders[device_of(result)].append(key_of(claim))

        began_s = anyio.current_time()
        await self._api.find(keep)
        took_s = anyio.current_time() - began_s
        return _Listed(began_s, began_s + min(max(LIST_KEPT_S, _KEPT_TIMES * took_s), _MOST_S), dict(holders))
