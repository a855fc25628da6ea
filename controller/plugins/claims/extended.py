"""The device claim that stands for a pod's extended resources: one per pod, over all attempts.

Its name follows from the pod, so it is created, or found because it exists already, and neither a crash nor a
lost answer makes a second one. Binders before this one had the server make up the name: what they left is
looked for once in the life of this process. Invariant: before a claim is discarded to make room for another,
the caller is asked, who looks at the pod.
"""

from collections.abc import Awaitable, Callable, Iterable

import anyio

from controller.kai.names import PODS
from controller.kai.outcome import Failed
from controller.kai.pods import full_name
from controller.kai.reasons import Reason
from controller.plugins.claims.api import ClaimApi, retrying
from controller.plugins.claims.model import (
    EXTENDED_STATUS,
    allocation_of,
    controller_uid,
    covers,
    device_requests,
    extended_claim,
    extended_claim_name,
    is_extended_claim_of,
    same_devices,
)
from controller.runtime import errors
from controller.runtime.client import Client, Object

MayDiscard = Callable[[], Awaitable[Failed | None]]
"""Looks at the pod, live; returns why nothing of it may be discarded."""


class ExtendedClaims:
    """Makes, finds and removes these claims. Methods may raise NotServedError and errors.ApiError."""

    def __init__(self, client: Client, api: ClaimApi) -> None:
        self._client = client
        self._api = api
        self._older: dict[str, list[str]] | None = None
        """Names that older binders had made up, by the uid of the pod; None until they are listed."""
        self._listing = anyio.Lock()

    async def settle(
        self, pod: Object, wanted: Object | None, may_discard: MayDiscard
    ) -> Object | Failed | None:
        """Leaves the pod with the one claim that is wanted, not allocated perhaps.

        Args:
            pod: The pod, which is on no node as far as known.
            wanted: The request's extendedResourceClaimAllocation; None if the pod is to have no such claim.
            may_discard: Asked before a claim is discarded.

        Returns:
            The claim, found or made; None if none is wanted; or why it cannot be had.
        """
        kept = None
        for claim in await self._hinted(pod):
            if kept is None and wanted is not None and await self._serves(claim, wanted):
                kept = claim
                continue
            failure = await self._remove(claim, may_discard)
            if failure is not None:
                return failure
        if kept is not None or wanted is None:
            return kept
        return await retrying(lambda: self._make(pod, wanted, may_discard))

    async def all(self, pod: Object) -> list[Object]:
        """Whatever claims of this kind the pod has."""
        own = extended_claim_name(pod)
        claims = await self._read(pod, [own, *await self._hints(pod)])
        hangs = any(
            item["metadata"]["name"] == own and item["metadata"].get("deletionTimestamp") for item in claims
        )
        return await self._find(pod) if hangs else claims

    async def discard(self, pod: Object) -> None:
        """Removes whatever claims of this kind the pod has; it must be on no node."""
        for claim in await retrying(lambda: self.all(pod), stubborn=True):
            await self._api.discard(claim)

    async def tell(self, pod: Object, status: Object | None) -> Failed | None:
        """Writes which claim it is into the pod's status, if it is not there already.

        Nothing else is written; and nothing if the pod has changed since it was read, as it may be on a node.
        """
        if (pod.get("status") or {}).get(EXTENDED_STATUS) == status:
            return None
        metadata = pod["metadata"]
        same = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        body: Object = {"metadata": same, "status": {EXTENDED_STATUS: status}}
        stored = await self._client.patch(
            PODS, metadata["name"], body, metadata["namespace"], subresource="status"
        )
        if (stored.get("status") or {}).get(EXTENDED_STATUS) == status:
            return None
        text = f"pod {full_name(pod)} needs status.{EXTENDED_STATUS}, which the API server drops"
        return Failed(Reason.UNSUPPORTED, f"{text}: its feature gate DRAExtendedResource is off")

    async def _make(self, pod: Object, wanted: Object, may_discard: MayDiscard) -> Object | Failed:
        """Creates the claim; or takes the one that has its name, unless that is for other devices."""
        requests, name = wanted["deviceRequests"], extended_claim_name(pod)
        for _ in range(2):
            try:
                return await self._api.create(lambda version: extended_claim(pod, requests, version))
            except errors.AlreadyExistsError:
                present = await self._api.get(pod["metadata"]["namespace"], name)
            if present is None:
                continue
            if not is_extended_claim_of(present, pod["metadata"]["uid"]):
                text = f"claim {full_name(present)} has the name of the claim for extended resources"
                return Failed(Reason.CLAIM_NOT_OWNED, f"{text} of pod {full_name(pod)}, but is not that")
            if await self._serves(present, wanted):
                return present
            failure = await self._remove(present, may_discard)
            if failure is not None:
                return failure
        return await self._make_beside(pod, wanted)

    async def _make_beside(self, pod: Object, wanted: Object) -> Object:
        """A claim of another name, for as long as somebody else's finalizer keeps the old one from going."""
        for claim in await self._find(pod):
            if await self._serves(claim, wanted):
                return claim
        requests = wanted["deviceRequests"]
        return await self._api.create(lambda version: extended_claim(pod, requests, version, named=False))

    async def _remove(self, claim: Object, may_discard: MayDiscard) -> Failed | None:
        failure = await may_discard()
        if failure is None:
            await self._api.discard(claim)
        return failure

    async def _hinted(self, pod: Object) -> list[Object]:
        """The claims that there is a hint of; those with devices first."""
        claims = await self._read(pod, await self._hints(pod))
        return sorted(claims, key=lambda claim: allocation_of(claim) is None)

    async def _hints(self, pod: Object) -> list[str]:
        """Names that the pod's status, or an older binder, has given to its claims."""
        async with self._listing:
            if self._older is None:
                self._older = await self._list_older()
        told = ((pod.get("status") or {}).get(EXTENDED_STATUS) or {}).get("resourceClaimName")
        return [*([told] if told else []), *self._older.get(pod["metadata"]["uid"], ())]

    async def _list_older(self) -> dict[str, list[str]]:
        def keep(claim: Object) -> Object | None:
            uid, name = controller_uid(claim), claim["metadata"]["name"]
            made_up = uid is not None and is_extended_claim_of(claim, uid) and not name.endswith(uid)
            return {"uid": uid, "name": name} if made_up else None

        names: dict[str, list[str]] = {}
        for item in await self._api.find(keep):
            names.setdefault(item["uid"], []).append(item["name"])
        return names

    async def _read(self, pod: Object, names: Iterable[str]) -> list[Object]:
        """Those of the claims with these names that are there and the pod's."""
        metadata = pod["metadata"]
        claims = [await self._api.get(metadata["namespace"], name) for name in dict.fromkeys(names)]
        return [item for item in claims if item is not None and is_extended_claim_of(item, metadata["uid"])]

    async def _find(self, pod: Object) -> list[Object]:
        """All of the pod's claims, whatever their names."""
        namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]
        return await self._api.find(lambda item: item if is_extended_claim_of(item, uid) else None, namespace)

    async def _serves(self, claim: Object, wanted: Object) -> bool:
        """Whether a claim from an earlier attempt is what this one needs."""
        present = allocation_of(claim)
        requests = device_requests(wanted["deviceRequests"], await self._api.version())
        return (
            not claim["metadata"].get("deletionTimestamp")
            and (present is None or same_devices(present, wanted["allocation"]))
            and covers(claim["spec"].get("devices"), {"requests": requests})
        )
