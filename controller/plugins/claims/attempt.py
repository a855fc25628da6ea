"""One attempt to give a pod its device claims on a node, written in kube-scheduler's order.

Finalizer first, then allocation and reservation in one write, both only if the claim still is as it was read.
Invariants: the pod is judged before each first write, by what its cache knows where one follows it; whatever
stands in the way is returned as a Failed that names the claim, the node, the devices and the rival.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial

import anyio
from anyio.lowlevel import checkpoint
from msgspec import Struct

from controller.kai.outcome import Failed, Outcome, Ready
from controller.kai.pods import full_name
from controller.kai.reasons import Reason
from controller.plugins.base import BindContext
from controller.plugins.claims.api import ClaimApi, Turns, retrying
from controller.plugins.claims.extended import ExtendedClaims
from controller.plugins.claims.holders import Holders
from controller.plugins.claims.model import (
    EXTENDED_STATUS,
    FINALIZER,
    PodClaim,
    allocation_of,
    devices,
    is_reserved,
    pod_claims,
    reserved_for,
    results,
    with_pod,
)
from controller.plugins.claims.pod import SeenPod
from controller.plugins.claims.verdicts import (
    devices_failure,
    judge_devices,
    readiness,
    usage_failure,
    write_failure,
)
from controller.runtime import errors
from controller.runtime.changes import Judged, Target
from controller.runtime.client import Client, Object

_Work = Callable[[PodClaim], Awaitable[Object | Failed | None]]
"""Does something with a claim of the pod; returns None if there is no such claim."""


class Tools(Struct, frozen=True):
    """What all attempts of this process share."""

    client: Client
    api: ClaimApi
    extended: ExtendedClaims
    turns: Turns
    holders: Holders


class ClaimBinding:
    """Used once. Its methods may raise NotServedError and errors.ApiError."""

    def __init__(self, tools: Tools, context: BindContext) -> None:
        self.step = "beginning"
        self.time = anyio.CancelScope()
        """Ends the attempt when its time is over."""
        self._tools = tools
        self._api = tools.api
        self._context = context
        self._namespace = context.request.namespace
        self._node_name = context.request.node_name
        self._seen = SeenPod(tools.client, context)
        self._wanted = {item["name"]: item["allocation"] for item in context.request.claim_allocations}
        self._found: Mapping[str, Object] = context.found if isinstance(context.found, dict) else {}

    @property
    def _pod(self) -> Object:
        return self._seen.pod

    async def look(self) -> dict[str, Object] | Failed:
        """Reads the claims, as soon as they are made, and writes nothing.

        Returns:
            The claims by name, for `run`; or what is in the way, as far as reading can tell.
        """
        claims = await self._each(self._check)
        return claims if isinstance(claims, Failed) else {item["metadata"]["name"]: item for item in claims}

    async def run(self) -> Outcome:
        """Does all of it; `step` says what it is at, for a caller that cuts it short."""
        claims = await self._each(self._bind)
        if isinstance(claims, Failed):
            return claims
        extended = await self._bind_extended()
        if isinstance(extended, Failed):
            return extended
        claims += [extended] if extended is not None else []
        return await self._await_devices(claims) or Ready(_summary(claims))

    async def _each(self, work: _Work) -> list[Object] | Failed:
        """Does `work` with all claims of the pod, in its order."""
        done = []
        for claim in pod_claims(self._pod):
            outcome = await self._once_made(claim, work)
            if isinstance(outcome, Failed):
                return outcome
            done += [outcome] if outcome is not None else []
        return done

    async def _once_made(self, claim: PodClaim, work: _Work) -> Object | Failed | None:
        """Does `work` with a claim, once it is there; None if the pod turns out not to need one."""
        present: PodClaim | Failed | None = claim
        while isinstance(present, PodClaim):
            outcome = await work(present) if present.name else None
            if outcome is not None:
                return outcome
            if not present.from_template:
                text = f"claim {self._namespace}/{present.name} of pod {self._context.request.pod_name}"
                return Failed(Reason.CLAIM_NOT_FOUND, f"{text} does not exist")
            present = await self._await_claim(present)
        return present

    async def _await_claim(self, old: PodClaim) -> PodClaim | Failed | None:
        """Waits for the resource claim controller to make the claim of an entry, or to make it anew.

        Returns:
            The claim; None if none is needed; Failed if the pod came to an end meanwhile.
        """
        entry = f"claim {old.entry} of pod {self._context.request.full_pod_name}"
        what = f"the resource claim controller to make {entry} from its template"
        self.step = f"waiting for {what}"
        async with self._context.waiting(what):
            failure = await self._seen.until(lambda pod: old not in pod_claims(pod))
        if failure is not None:
            return failure
        return next((item for item in pod_claims(self._pod) if item.entry == old.entry), None)

    async def _check(self, claim: PodClaim) -> Object | Failed | None:
        self.step = f"reading claim {self._namespace}/{claim.name}"
        found = await self._api.get(self._namespace, claim.name)
        return found if found is None else self._failure(found, claim) or found

    async def _bind(self, claim: PodClaim, made: Object | None = None) -> Object | Failed | None:
        """Allocates a claim if need be and reserves it.

        Args:
            claim: Which one.
            made: The claim, if it was just created.

        Returns:
            The claim as it now is, or what is in the way; None if it does not exist.
        """
        self.step = f"reserving claim {self._namespace}/{claim.name}"
        what = f"its turn to write claim {self._namespace}/{claim.name}, which many pods share"
        async with self._tools.turns.take(
            self._namespace, claim.name, lambda: self._context.waiting(what)
        ) as turn:
            known = made or turn.claim or self._found.get(claim.name)

            async def work() -> Object | Failed | None:
                nonlocal known
                # What is known may have changed since: good enough for a write, which the server checks.
                found, known = known, None
                if found is None or self._is_reserved(found) or self._failure(found, claim) is not None:
                    found = await self._api.get(self._namespace, claim.name)
                return found if found is None else await self._write(found, claim)

            outcome = await retrying(work)
            turn.claim = None if isinstance(outcome, Failed) else outcome
            return outcome

    async def _write(self, claim: Object, use: PodClaim) -> Object | Failed:
        """Writes what the claim lacks, in two requests at most; devices only if no other claim has them."""
        failure = self._failure(claim, use)
        if failure is not None:
            return failure
        if allocation_of(claim) is not None:
            return await self._reserve(claim, None)
        wanted = self._wanted[use.entry]
        what = f"another request that gives {devices(wanted)} away"
        giving = self._tools.holders.giving
        async with giving(claim, wanted, self._node_name, lambda: self._context.waiting(what)) as failure:
            return failure or await self._reserve(claim, wanted)

    async def _reserve(self, claim: Object, wanted: Object | None) -> Object | Failed:
        """Reserves a claim, and gives it devices unless it has some (None)."""
        finalizers, reserved = claim["metadata"].get("finalizers") or [], self._is_reserved(claim)
        if FINALIZER in finalizers and reserved and wanted is None:
            return claim
        failure = await self._seen.look()
        if failure is not None:
            return failure
        if FINALIZER not in finalizers:
            async with self._to_its_end():
                claim = await self._api.patch(claim, {"metadata": {"finalizers": [*finalizers, FINALIZER]}})
        if reserved and wanted is None:
            return claim
        status: Object = {"reservedFor": with_pod(reserved_for(claim), self._pod)}
        if wanted is not None:
            status["allocation"] = _dated(wanted)
        try:
            async with self._to_its_end():
                return await self._api.patch(claim, {"status": status}, subresource="status")
        except errors.InvalidError as error:
            given = wanted or allocation_of(claim) or {}
            return write_failure(error, claim, given, self._node_name)

    @asynccontextmanager
    async def _to_its_end(self) -> AsyncIterator[None]:
        """A write that is sent is waited for though the time is over: it could land after the rollback.

        None is sent once it is over: it may have ended in the write before, and nothing was awaited since.
        """
        await checkpoint()
        deadline_s, self.time.deadline = self.time.deadline, float("inf")
        try:
            yield
        finally:
            self.time.deadline = deadline_s

    def _is_reserved(self, claim: Object) -> bool:
        return is_reserved(claim, self._pod["metadata"]["uid"])

    def _failure(self, claim: Object, use: PodClaim) -> Failed | None:
        """Why this pod cannot have this claim with these devices on this node; None if it can."""
        wanted = self._wanted.get(use.entry)
        return usage_failure(claim, self._pod, from_template=use.from_template) or devices_failure(
            claim, wanted, self._pod, self._context.node
        )

    async def _bind_extended(self) -> Object | Failed | None:
        """The claim for extended resources, if the request has one; if not, none must be left either."""
        wanted = self._context.request.extended_claim
        if wanted is None and EXTENDED_STATUS not in (self._pod.get("status") or {}):
            return None
        self.step = "finding or making the claim for extended resources"
        failure = await self._seen.look()
        if failure is not None:
            return failure
        async with self._to_its_end():
            claim = await self._tools.extended.settle(self._pod, wanted, lambda: self._seen.look(live=True))
        if isinstance(claim, Failed):
            return claim
        if claim is None or wanted is None:
            # Left by a decision for another node, and the kubelet would go by it.
            return await self._tell_pod(None)
        use = PodClaim("", claim["metadata"]["name"], from_template=True)
        self._wanted[use.entry] = wanted["allocation"]
        bound = await self._bind(use, claim)
        if bound is None:
            text = f"claim {full_name(claim)} for extended resources was deleted meanwhile"
            return Failed(Reason.CLAIM_NOT_FOUND, text)
        if isinstance(bound, Failed):
            return bound
        status = {"resourceClaimName": use.name, "requestMappings": wanted["containerMappings"]}
        return await self._tell_pod(status) or bound

    async def _tell_pod(self, status: Object | None) -> Failed | None:
        self.step = "naming the claim for extended resources in the pod's status"

        async def work() -> Failed | None:
            failure = await self._seen.look()
            async with self._to_its_end():
                return failure or await self._tools.extended.tell(self._pod, status)

        return await retrying(work)

    async def _await_devices(self, claims: Iterable[Object]) -> Failed | None:
        """Waits until the devices that need preparing are prepared, or their driver says they will not be."""
        latest = {item["metadata"]["name"]: item for item in claims}

        def judge(name: str, found: Object | None) -> Ready | Failed | None:
            if found is None or not self._is_reserved(found):
                text = f"claim {full_name(latest[name])} was taken away while its devices were prepared"
                return Failed(Reason.ALLOCATION_CONFLICT, text)
            latest[name] = found
            return judge_devices(latest.values(), self._node_name)

        verdict = judge_devices(latest.values(), self._node_name)
        if verdict is None:
            awaited = {name: text for name, item in latest.items() if (text := readiness(item).waits_for)}
            what = " and ".join(awaited.values())
            self.step = f"waiting for {what}"
            async with self._context.waiting(what):
                resource = await self._api.resource()
                versions = {name: latest[name]["metadata"]["resourceVersion"] for name in awaited}
                judged: list[Judged[Ready | Failed]] = [
                    Judged(Target(resource, name, self._namespace, version), partial(judge, name))
                    for name, version in versions.items()
                ]
                verdict = await self._context.changes.until(*judged)
        return verdict if isinstance(verdict, Failed) else None


def _dated(allocation: Object) -> Object:
    """The allocation as it is to be written; drivers that prepare devices want to know since when."""
    prepared = any(item.get("bindingConditions") for item in results(allocation))
    if not prepared or allocation.get("allocationTimestamp"):
        return allocation
    return {**allocation, "allocationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}


def _summary(claims: Iterable[Object]) -> str:
    texts = [f"claim {full_name(claim)} has {devices(allocation_of(claim) or {})}" for claim in claims]
    return "; ".join(texts) or "no claim is needed"
