"""One attempt to give a pod its claims on a node, written in kube-scheduler's order; for dynamicresources.

Finalizer first, then allocation and reservation in one write, both only if the claim still is as it was read.
Whatever stands in the way is returned as a Failed that names the claim, the node, the devices and the rival.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime

import anyio

from controller.kai.names import PODS
from controller.kai.outcome import Failed, Outcome, Ready
from controller.kai.reasons import Reason
from controller.kai.selectors import node_selected
from controller.plugins.base import BindContext
from controller.plugins.claims.api import ClaimApi, retrying
from controller.plugins.claims.extended import STATUS, ExtendedClaims
from controller.plugins.claims.model import (
    FINALIZER,
    RESERVED_FOR_LIMIT,
    PodClaim,
    allocation_of,
    devices,
    full_name,
    is_reserved,
    pod_claims,
    readiness,
    reserved_for,
    results,
    same_devices,
    unusable,
    users,
    with_pod,
)
from controller.runtime import errors
from controller.runtime.client import Client, Object

POD_FRESH_S = 1.0
"""A pod read longer ago than this is read again before something is reserved for it."""

_POLL_S = 1.0

Turn = Callable[[str], AbstractAsyncContextManager[None]]
"""Waits until no other request of this process writes the claim of that name."""


class ClaimBinding:
    """Used once. Its methods may raise NotServedError and errors.ApiError."""

    def __init__(self, client: Client, api: ClaimApi, context: BindContext, turn: Turn) -> None:
        self.step = "reading the pod"
        self._client = client
        self._api = api
        self._context = context
        self._extended = ExtendedClaims(client, api)
        self._turn = turn
        self._pod = context.pod
        self._pod_read_s = float("-inf")

    @property
    def _namespace(self) -> str:
        return self._context.request.namespace

    @property
    def _node_name(self) -> str:
        return self._context.request.node_name

    async def run(self) -> Outcome:
        """Does all of it; `step` says what it is at, for a caller that cuts it short."""
        claims = await self._claims()
        if isinstance(claims, Failed):
            return claims
        bound: list[Object] = []
        for claim, wanted in claims:
            outcome = await self._bind(claim, wanted)
            if isinstance(outcome, Failed):
                return outcome
            bound.append(outcome)
        extended = await self._bind_extended()
        if isinstance(extended, Failed):
            return extended
        bound += [extended] if extended is not None else []
        refused = await self._await_devices(bound) or await self._check_pod()
        return refused or Ready(_summary(bound))

    async def obstacle(self) -> Failed | None:
        """What is in the way as far as reading can tell; writes nothing."""
        claims = await self._claims()
        if isinstance(claims, Failed):
            return claims
        for claim, wanted in claims:
            found = await self._api.get(self._namespace, claim.name)
            if found is None:
                return self._no_such(claim)
            refused = self._refused(found, wanted, from_template=claim.from_template)
            if refused is not None:
                return refused
        return None

    async def _claims(self) -> list[tuple[PodClaim, Object | None]] | Failed:
        """The claims of the pod as it is now, each with the allocation that the request brings for it."""
        request = self._context.request
        refused = await self._check_pod()
        if refused is not None:
            return refused
        claims, missing = pod_claims(self._pod)
        if missing:
            text = f"pod {request.namespace}/{request.pod_name} has no claim yet for {', '.join(missing)}"
            return Failed(Reason.CLAIM_NOT_FOUND, f"{text}, which the resource claim controller is to make")
        wanted = {item["name"]: item["allocation"] for item in request.claim_allocations}
        return [(claim, wanted.get(claim.entry)) for claim in claims]

    def _no_such(self, claim: PodClaim) -> Failed:
        text = f"claim {self._namespace}/{claim.name} of pod {self._context.request.pod_name} does not exist"
        return Failed(Reason.CLAIM_NOT_FOUND, text)

    async def _check_pod(self) -> Failed | None:
        """Why the pod is not to have anything reserved, by a read that is not old."""
        if anyio.current_time() - self._pod_read_s < POD_FRESH_S:
            return None
        request, uid = self._context.request, self._context.pod["metadata"]["uid"]
        name = f"{request.namespace}/{request.pod_name}"
        try:
            pod = await self._client.get(PODS, request.pod_name, request.namespace)
        except errors.NotFoundError:
            return Failed(Reason.POD_NOT_FOUND, f"pod {name} is gone", retry=False)
        phase, node_name = (pod.get("status") or {}).get("phase"), pod["spec"].get("nodeName")
        if pod["metadata"]["uid"] != uid:
            return Failed(
                Reason.POD_REPLACED, f"pod {name} was replaced while its claims were bound", retry=False
            )
        if node_name and node_name != self._node_name:
            text = f"pod {name} is on node {node_name} already, not on {self._node_name}"
            return Failed(Reason.ALREADY_BOUND_ELSEWHERE, text, retry=False)
        if pod["metadata"].get("deletionTimestamp"):
            return Failed(Reason.POD_TERMINATING, f"pod {name} is being deleted", retry=False)
        if phase in ("Succeeded", "Failed"):
            return Failed(Reason.POD_FINISHED, f"pod {name} has ended: its phase is {phase}", retry=False)
        self._pod, self._pod_read_s = pod, anyio.current_time()
        return None

    async def _bind(
        self, claim: PodClaim, wanted: Object | None, *, known: Object | None = None
    ) -> Object | Failed:
        """Allocates a claim if need be and reserves it.

        Args:
            claim: Which one.
            wanted: The allocation that the request brings for it, if any.
            known: The claim as just created, which spares the first read.

        Returns:
            The claim as it now is, or what is in the way.
        """
        self.step = f"reserving claim {self._namespace}/{claim.name}"

        async def work() -> Object | Failed:
            nonlocal known
            found, known = known or await self._api.get(self._namespace, claim.name), None
            if found is None:
                return self._no_such(claim)
            return await self._write(found, wanted, from_template=claim.from_template)

        async with self._turn(claim.name):
            return await retrying(work)

    async def _write(self, claim: Object, wanted: Object | None, *, from_template: bool) -> Object | Failed:
        """Writes what the claim lacks, in two requests at most."""
        allocation = allocation_of(claim) or wanted
        refused = self._refused(claim, wanted, from_template=from_template)
        if refused is not None:
            return refused
        assert allocation is not None  # noqa: S101 -- or there was an obstacle
        protected = claim["metadata"].get("finalizers") or []
        reserved = is_reserved(claim, self._pod["metadata"]["uid"])
        if FINALIZER in protected and reserved:
            return claim
        refused = await self._check_pod()
        if refused is not None:
            return refused
        if FINALIZER not in protected:
            claim = await self._api.patch(claim, {"metadata": {"finalizers": [*protected, FINALIZER]}})
        if reserved:
            return claim
        status: Object = {"reservedFor": with_pod(reserved_for(claim), self._pod)}
        if allocation_of(claim) is None:
            status["allocation"] = _dated(allocation)
        try:
            return await self._api.patch(claim, {"status": status}, subresource="status")
        except errors.InvalidError as error:
            return self._refusal(error, claim, allocation)

    def _refused(self, claim: Object, wanted: Object | None, *, from_template: bool) -> Failed | None:
        """Why this pod cannot have this claim with these devices on this node; None if it can."""
        refused = unusable(claim, self._pod, from_template=from_template)
        if refused is not None:
            return refused
        name, present = full_name(claim), allocation_of(claim)
        if present is None and wanted is None:
            text = (
                f"claim {name} has no devices, and the request for node {self._node_name} brings none for it"
            )
            return Failed(Reason.CLAIM_UNALLOCATED, text)
        if present is not None and wanted is not None and not same_devices(present, wanted):
            text = f"claim {name} has {devices(present)} already, reserved for {users(claim)}; the request"
            text = f"{text} for node {self._node_name} wants {devices(wanted)}"
            return Failed(Reason.ALLOCATION_CONFLICT, text)
        allocation = present or wanted or {}
        if not self._on_node(allocation):
            text = f"claim {name} has {devices(allocation)}, which cannot be used on node {self._node_name}"
            return Failed(
                Reason.ALLOCATION_CONFLICT, f"{text}: its node selector is {allocation['nodeSelector']}"
            )
        full = len(reserved_for(claim)) >= RESERVED_FOR_LIMIT
        if full and not is_reserved(claim, self._pod["metadata"]["uid"]):
            return self._full(claim, RESERVED_FOR_LIMIT)
        return None

    def _on_node(self, allocation: Object) -> bool:
        return node_selected(allocation.get("nodeSelector"), self._context.node)

    def _full(self, claim: Object, limit: int) -> Failed:
        text = f"claim {full_name(claim)} is reserved for {limit} pods, which is the limit: {users(claim)}"
        return Failed(
            Reason.CLAIM_FULL, f"{text}; it has no room for one on node {self._node_name}", retry=False
        )

    def _refusal(self, error: errors.InvalidError, claim: Object, allocation: Object) -> Failed:
        """What the server's refusal of a reservation means."""
        causes = (error.body.get("details") or {}).get("causes") or ()
        if any(cause.get("reason") == "FieldValueTooMany" for cause in causes):
            return self._full(claim, len(reserved_for(claim)))  # older servers allow 32
        # Since Kubernetes 1.36 a right is missing in these words, not as a 403.
        forbidden = any("resourceclaims/binding" in str(cause.get("message")) for cause in causes)
        text = f"claim {full_name(claim)} cannot get {devices(allocation)} on node {self._node_name}"
        return Failed(Reason.FORBIDDEN if forbidden else Reason.REJECTED, f"{text}: {error.message}")

    async def _bind_extended(self) -> Object | Failed | None:
        """The claim for extended resources, if the request has one; if not, none must be left either."""
        wanted = self._context.request.extended_claim
        if wanted is None and STATUS not in (self._pod.get("status") or {}):
            return None
        self.step = "finding or making the claim for extended resources"
        claim = await self._extended.settle(self._pod, wanted)
        if claim is None or wanted is None:
            # Left by a decision for another node, and the kubelet would go by it.
            return await self._extended.tell(self._pod, None)
        name = claim["metadata"]["name"]
        bound = await self._bind(PodClaim("", name, from_template=True), wanted["allocation"], known=claim)
        if isinstance(bound, Failed):
            return bound
        self.step = f"naming claim {name} in the pod's status"
        status = {"resourceClaimName": name, "requestMappings": wanted["containerMappings"]}
        return await self._extended.tell(self._pod, status) or bound

    async def _await_devices(self, claims: Iterable[Object]) -> Failed | None:
        """Waits until the devices that need preparing are prepared, or their driver says they will not be."""
        for claim in claims:
            state = readiness(claim)
            if state.waits_for:
                self.step = f"waiting for {state.waits_for}"
                async with self._context.waiting(state.waits_for):
                    while state.waits_for:
                        await anyio.sleep(_POLL_S)
                        metadata = claim["metadata"]
                        found = await self._api.get(metadata["namespace"], metadata["name"])
                        if found is None or not is_reserved(found, self._pod["metadata"]["uid"]):
                            text = f"claim {full_name(claim)} was taken away while its devices were prepared"
                            return Failed(Reason.ALLOCATION_CONFLICT, text)
                        state = readiness(found)
                        refused = await self._check_pod()
                        if refused is not None:
                            return refused
            if state.failure:
                return Failed(Reason.DEVICE_NOT_READY, f"{state.failure}, on node {self._node_name}")
        return None


def _dated(allocation: Object) -> Object:
    """The allocation as it is to be written; drivers that prepare devices want to know since when."""
    prepared = any(item.get("bindingConditions") for item in results(allocation))
    if not prepared or allocation.get("allocationTimestamp"):
        return allocation
    return {**allocation, "allocationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}


def _summary(claims: Iterable[Object]) -> str:
    texts = [f"claim {full_name(claim)} has {devices(allocation_of(claim) or {})}" for claim in claims]
    return "; ".join(texts) or "no claim is needed"
