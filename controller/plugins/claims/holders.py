"""Which claims hold which devices: the last look before a claim is given its own; for this package.

Neither the API server nor KAI's scheduler sees to it that no two claims have one device: the scheduler does
not count what a request for extended resources is about to get. Invariants: of two attempts of this process
that give a device away, the second looks after the first has written, and knows what that wrote, which a list
may not have yet; a list may be a moment old, so that a claim is called a rival only after a live read.
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
from controller.plugins.shared import SHARED_S, Shared
from controller.runtime.client import Object
from controller.runtime.locks import KeyedLock, Waiting

Name = tuple[str, str]
"""Namespace and name of a claim."""


class _Listed(Struct, frozen=True):
    """What a list of all claims said, and when it was asked for."""

    began_s: float
    holders: dict[Device, list[Name]]


class _Written(Struct, frozen=True):
    """What an attempt wrote, or may have written, into a claim."""

    ended_s: float
    devices: frozenset[Device]


class Holders:
    """The holders of all devices, as far as needed."""

    def __init__(self, api: ClaimApi) -> None:
        self._api = api
        self._lists = Shared(self._list)
        self._giving: KeyedLock[Device] = KeyedLock()
        self._written: dict[Name, _Written] = {}

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
                if failure is None and devices:
                    self._written[_name(claim)] = _Written(anyio.current_time(), devices)

    async def _failure(
        self, claim: Object, wanted: Object, devices: frozenset[Device], node_name: str
    ) -> Failed | None:
        listed = await self._lists.get(None)
        self._forget(listed.began_s - SHARED_S)
        suspects = {name for device in devices for name in listed.holders.get(device, ())}
        suspects |= {name for name, written in self._written.items() if written.devices & devices}
        for namespace, name in sorted(suspects - {_name(claim)}):
            other = await self._api.get(namespace, name)
            failure = taken_failure(claim, wanted, other, node_name)
            if failure is not None:
                return failure
        return None

    def _forget(self, until_s: float) -> None:
        """Forgets what was written before: all lists in use have it."""
        for name in [name for name, written in self._written.items() if written.ended_s < until_s]:
            del self._written[name]

    async def _list(self, _: None) -> _Listed:
        holders: defaultdict[Device, list[Name]] = defaultdict(list)

        def keep(claim: Object) -> None:
            for result in exclusive(allocation_of(claim) or {}):
                holders[device_of(result)].append(_name(claim))

        began_s = anyio.current_time()
        await self._api.find(keep)
        return _Listed(began_s, dict(holders))


def _name(claim: Object) -> Name:
    return claim["metadata"]["namespace"], claim["metadata"]["name"]
