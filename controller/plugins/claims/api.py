"""Reads and writes ResourceClaims in whichever version of their API the server has; for dynamicresources.

Which version that is, is asked when the first claim is needed, and remembered once known. "No such API" is
not remembered, and no answer is not taken for one. Every write names the claim's uid and resourceVersion.
"""

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from controller.plugins.claims.model import (
    FINALIZER,
    allocation_of,
    is_extended_claim_of,
    is_reserved,
    reserved_for,
    without_pod,
)
from controller.runtime import errors
from controller.runtime.client import Client, Object, Resource

T = TypeVar("T")

GROUP = "resource.k8s.io"
VERSIONS = ("v1", "v1beta2", "v1beta1")
"""Known ones, best first."""

TRIES = 10
_FIRST_DELAY_S = 0.01
_MAX_DELAY_S = 0.4


class NotServedError(Exception):
    """The server has no version of resource.k8s.io that we know."""

    def __init__(self) -> None:
        super().__init__(
            f"the API server does not serve {GROUP} in any of the versions {', '.join(VERSIONS)}"
        )


class ClaimApi:
    """The ResourceClaims of one server. All methods may raise NotServedError and errors.ApiError."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._version: str | None = None

    async def version(self) -> str:
        """The best version that the server has."""
        if self._version is None:
            self._version = await self._discover()
        return self._version

    async def get(self, namespace: str, name: str) -> Object | None:
        """Reads a claim, live; None if there is none."""
        for _ in range(2):
            try:
                return await self._client.get(await self._resource(), name, namespace)
            except errors.NotFoundError as error:
                if error.body:
                    return None
                self._version = None  # not the claim is unknown but the version, since an upgrade
        raise NotServedError

    async def extended_claims(self, namespace: str, pod_uid: str) -> list[Object]:
        """All claims that stand for the extended resources of this very pod."""

        def keep(claim: Object) -> Object | None:
            return claim if is_extended_claim_of(claim, pod_uid) else None

        selector = {"fieldSelector": f"metadata.namespace={namespace}"}
        return (await self._client.list_all(await self._resource(), selector, keep=keep)).items

    async def create(self, claim: Object) -> Object:
        """Creates a claim."""
        return await self._client.create(await self._resource(), claim, claim["metadata"]["namespace"])

    async def patch(self, claim: Object, delta: Object, *, subresource: str = "") -> Object:
        """Merges `delta` into this very claim, if nobody has changed it since it was read."""
        read = claim["metadata"]
        same = {"uid": read["uid"], "resourceVersion": read["resourceVersion"]}
        body = {**delta, "metadata": {**delta.get("metadata", {}), **same}}
        return await self._client.patch(
            await self._resource(), read["name"], body, read["namespace"], subresource=subresource
        )

    async def release(self, namespace: str, name: str, pod_uid: str, *, deallocate: bool) -> None:
        """Takes a pod out of a claim's users.

        Args:
            namespace: Of the claim.
            name: Of the claim.
            pod_uid: Of the pod.
            deallocate: Whether the devices go as well, if this leaves no user.
        """

        async def work() -> None:
            claim = await self.get(namespace, name)
            if claim is None or not is_reserved(claim, pod_uid):
                return
            rest = without_pod(reserved_for(claim), pod_uid)
            if rest or not deallocate:
                await self.patch(claim, {"status": {"reservedFor": rest or None}}, subresource="status")
            else:
                await self._unprotect(await self._deallocate(claim))

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
                resource = await self._resource()
                await self._client.delete(
                    resource, metadata["name"], metadata["namespace"], uid=metadata["uid"]
                )

        await retrying(work, stubborn=True)

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

    async def _resource(self) -> Resource:
        return Resource(f"{GROUP}/{await self.version()}", "resourceclaims")

    async def _discover(self) -> str:
        try:
            group = await self._client.raw(f"/apis/{GROUP}")
        except errors.NotFoundError:
            raise NotServedError from None
        served = {item["version"] for item in group["versions"]}
        for version in VERSIONS:
            if version in served:
                return version
        raise NotServedError


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
            if not tries_left or not stubborn or not (error.unclear or error.transient):
                raise
        await anyio.sleep(delay_s * random.uniform(0.5, 1.5))  # noqa: S311 -- to part those that collided
        delay_s = min(delay_s * 2, _MAX_DELAY_S)
    raise AssertionError("the last try returns or raises")
