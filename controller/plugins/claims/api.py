"""Reads and writes device claims, in whichever version of their API the server has; for this package.

Which version that is, is asked when the first claim is needed, and again once the server knows it no longer.
"No such API" is not remembered, and no answer is not taken for one. Every write names the claim's uid and
resourceVersion.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
from msgspec import Struct

from controller.kai.names import CLAIM_VERSIONS
from controller.plugins.claims.model import (
    FINALIZER,
    allocation_of,
    is_reserved,
    reserved_for,
    same_devices,
    without_pod,
)
from controller.runtime import errors
from controller.runtime.client import Client, Object, Resource
from controller.runtime.locks import KeyedLock, Waiting

T = TypeVar("T")

GROUP = "resource.k8s.io"

TRIES = 10
_FIRST_DELAY_S = 0.01
_MAX_DELAY_S = 0.4


class NotServedError(Exception):
    """The server has no version of resource.k8s.io that we know."""

    def __init__(self) -> None:
        super().__init__(
            f"the API server does not serve {GROUP} in any of the versions {', '.join(CLAIM_VERSIONS)}"
        )


class ClaimApi:
    """The device claims of one server. All methods may raise NotServedError and errors.ApiError."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._version: str | None = None

    async def version(self) -> str:
        """The best version that the server has."""
        if self._version is None:
            self._version = await self._discover()
        return self._version

    async def resource(self) -> Resource:
        """Device claims, as the server's paths name them."""
        return Resource(f"{GROUP}/{await self.version()}", "resourceclaims")

    async def get(self, namespace: str, name: str) -> Object | None:
        """Reads a claim, live; None if there is none."""
        try:
            return await self._ask(lambda resource: self._client.get(resource, name, namespace))
        except errors.NotFoundError:
            return None

    async def find(self, keep: Callable[[Object], Object | None], namespace: str = "") -> list[Object]:
        """Reads all claims of a namespace, or of all namespaces; returns what `keep` keeps of them."""
        selector = {"fieldSelector": f"metadata.namespace={namespace}"} if namespace else {}
        listed = await self._ask(lambda resource: self._client.list_all(resource, selector, keep=keep))
        return listed.items

    async def create(self, make: Callable[[str], Object]) -> Object:
        """Creates a claim; `make` is told the version of the API in whose shape it is to be."""

        async def work(resource: Resource) -> Object:
            claim = make(resource.version.removeprefix(f"{GROUP}/"))
            return await self._client.create(resource, claim, claim["metadata"]["namespace"])

        return await self._ask(work)

    async def patch(self, claim: Object, delta: Object, *, subresource: str = "") -> Object:
        """Merges `delta` into this very claim, if nobody has changed it since it was read."""
        read = claim["metadata"]
        same = {"uid": read["uid"], "resourceVersion": read["resourceVersion"]}
        body = {**delta, "metadata": {**delta.get("metadata", {}), **same}}
        name, namespace = read["name"], read["namespace"]
        return await self._ask(
            lambda resource: self._client.patch(resource, name, body, namespace, subresource=subresource)
        )

    async def release(self, namespace: str, name: str, pod_uid: str, brought: Object | None) -> None:
        """Takes a pod out of a claim's users.

        Not if it is the last one and the claim has other devices than those brought: an earlier request gave
        them to it, of which nobody else knows, and Kubernetes frees them with the pod only if it is a user.

        Args:
            namespace: Of the claim.
            name: Of the claim.
            pod_uid: Of the pod.
            brought: The devices that go as well, if the claim has these and no user is left; None if none go.
        """

        async def work() -> None:
            claim = await self.get(namespace, name)
            if claim is None:
                return
            rest, present = without_pod(reserved_for(claim), pod_uid), allocation_of(claim)
            if brought is not None and not rest:
                if present is None or same_devices(present, brought):
                    await self._unprotect(await self._deallocate(claim))
            elif is_reserved(claim, pod_uid):
                await self.patch(claim, {"status": {"reservedFor": rest or None}}, subresource="status")

        await retrying(work, stubborn=True)

    async def discard(self, claim: Object) -> None:
        """Deletes a claim that no running pod uses; the devices are free before it is gone."""
        metadata = claim["metadata"]

        async def work() -> None:
            present = await self.get(metadata["namespace"], metadata["name"])
            if present is None or present["metadata"]["uid"] != metadata["uid"]:
                return
            present = await self._unprotect(await self._deallocate(present))
            if not present["metadata"].get("deletionTimestamp"):
                await self._delete(present["metadata"])

        await retrying(work, stubborn=True)

    async def _delete(self, metadata: Object) -> None:
        name, namespace, uid = metadata["name"], metadata["namespace"], metadata["uid"]
        await self._ask(lambda resource: self._client.delete(resource, name, namespace, uid=uid))

    async def _deallocate(self, claim: Object) -> Object:
        """Takes devices and users from a claim."""
        if not allocation_of(claim) and not reserved_for(claim):
            return claim
        status = {"allocation": None, "reservedFor": None}
        return await self.patch(claim, {"status": status}, subresource="status")

    async def _unprotect(self, claim: Object) -> Object:
        """Lets a claim without devices go, as the resource claim controller does."""
        finalizers = claim["metadata"].get("finalizers") or []
        if FINALIZER not in finalizers:
            return claim
        rest = [item for item in finalizers if item != FINALIZER]
        return await self.patch(claim, {"metadata": {"finalizers": rest or None}})

    async def _ask(self, work: Callable[[Resource], Awaitable[T]]) -> T:
        """Does `work` in the version that the server has: another one, perhaps, since it was upgraded."""
        for _ in range(2):
            try:
                return await work(await self.resource())
            except errors.NotFoundError as error:
                if (error.body.get("details") or {}).get("name"):
                    raise  # it is an object that is not there
                self._version = None  # it is the version
        raise NotServedError

    async def _discover(self) -> str:
        try:
            group = await self._client.raw(f"/apis/{GROUP}")
        except errors.NotFoundError:
            raise NotServedError from None
        served = {item["version"] for item in group["versions"]}
        for version in CLAIM_VERSIONS:
            if version in served:
                return version
        raise NotServedError


class Turn(Struct):
    """The time in which no other attempt of this process writes a claim.

    Attributes:
        claim: As the attempt before has left it, which may be out of date: good enough for a write, which the
            server checks, not for a verdict. What is there in the end is handed to the next one.
    """

    claim: Object | None


class Turns:
    """Has the attempts of this process write a claim one after the other, instead of colliding."""

    def __init__(self) -> None:
        self._locks: KeyedLock[tuple[str, str]] = KeyedLock()
        self._left: dict[tuple[str, str], Object] = {}

    @asynccontextmanager
    async def take(self, namespace: str, name: str, waiting: Waiting) -> AsyncIterator[Turn]:
        """Holds the turn for the block; a wait for it happens inside of `waiting()`."""
        key = (namespace, name)
        try:
            async with self._locks.hold(key, waiting):
                turn = Turn(self._left.pop(key, None))
                yield turn
                if turn.claim is not None:
                    self._left[key] = turn.claim
        finally:
            if not self._locks.users(key):
                self._left.pop(key, None)


async def retrying(work: Callable[[], Awaitable[T]], *, stubborn: bool = False) -> T:
    """Repeats `work`, which starts with a live read, while others get in between.

    Args:
        work: What to do.
        stubborn: Also when the server failed: for what nobody would repeat later.
    """
    delay_s = _FIRST_DELAY_S
    for tries_left in reversed(range(TRIES)):
        try:
            return await work()
        except (errors.ConflictError, errors.NotFoundError):
            if not tries_left:
                raise
        except errors.ApiError as error:
            if not tries_left or not stubborn or not error.says_nothing:
                raise
        await anyio.sleep(delay_s * random.uniform(0.5, 1.5))  # noqa: S311 -- to part those that collided
        delay_s = min(delay_s * 2, _MAX_DELAY_S)
    raise AssertionError("the last try returns or raises")
