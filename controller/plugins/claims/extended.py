"""The claim that stands for a pod's extended resources: one per pod, over all attempts; for dynamicresources.

Nothing is remembered here. The claim is found again by its owner and its annotation, so that neither a crash
nor a lost answer makes a second one; and one that an earlier attempt left for other devices goes first.
"""

from functools import partial

from controller.kai.names import PODS
from controller.kai.outcome import Failed
from controller.kai.reasons import Reason
from controller.plugins.claims.api import ClaimApi, retrying
from controller.plugins.claims.model import (
    allocation_of,
    covers,
    device_requests,
    extended_claim,
    same_devices,
)
from controller.runtime.client import Client, Object

STATUS = "extendedResourceClaimStatus"
"""Where the pod's status names the claim."""


class ExtendedClaims:
    """Makes, finds and removes these claims. Methods may raise NotServedError and errors.ApiError."""

    def __init__(self, client: Client, api: ClaimApi) -> None:
        self._client = client
        self._api = api

    async def settle(self, pod: Object, wanted: Object | None) -> Object | None:
        """Leaves the pod with the one claim that is wanted, not allocated perhaps.

        Args:
            pod: The pod, which is on no node.
            wanted: The request's extendedResourceClaimAllocation; None if the pod is to have no such claim.

        Returns:
            The claim, found or made; None if none is wanted.
        """
        metadata, version = pod["metadata"], await self._api.version()
        present = await self._api.extended_claims(metadata["namespace"], metadata["uid"])
        kept = None
        for claim in sorted(present, key=lambda item: allocation_of(item) is None):
            if kept is None and wanted is not None and _serves(claim, wanted, version):
                kept = claim
            else:
                await self._api.discard(claim)
        if kept is None and wanted is not None:
            kept = await self._api.create(extended_claim(pod, wanted["deviceRequests"], version))
        return kept

    async def discard(self, namespace: str, pod_uid: str) -> None:
        """Removes whatever claim of this kind the pod has."""
        find = partial(self._api.extended_claims, namespace, pod_uid)
        for claim in await retrying(find, stubborn=True):
            await self._api.discard(claim)

    async def tell(self, pod: Object, status: Object | None) -> Failed | None:
        """Writes which claim it is into the pod's status, and nothing else, if it is not there already."""
        if (pod.get("status") or {}).get(STATUS) == status:
            return None
        metadata = pod["metadata"]
        body: Object = {"metadata": {"uid": metadata["uid"]}, "status": {STATUS: status}}
        stored = await self._client.patch(
            PODS, metadata["name"], body, metadata["namespace"], subresource="status"
        )
        if (stored.get("status") or {}).get(STATUS) == status:
            return None
        text = f"pod {metadata['namespace']}/{metadata['name']} needs status.{STATUS}, which the API server"
        return Failed(Reason.UNSUPPORTED, f"{text} drops: its feature gate DRAExtendedResource is off")


def _serves(claim: Object, wanted: Object, version: str) -> bool:
    """Whether a claim from an earlier attempt is what this one needs."""
    present = allocation_of(claim)
    requests = device_requests(wanted["deviceRequests"], version)
    return (
        not claim["metadata"].get("deletionTimestamp")
        and (present is None or same_devices(present, wanted["allocation"]))
        and covers(claim["spec"].get("devices"), {"requests": requests})
    )
