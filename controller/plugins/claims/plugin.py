"""Resource claims (DRA): allocates them as the request says and reserves them for the pod (B-61…B-68).

Order and fields of the writes are kube-scheduler's, since the API server, the resource claim controller and
the kubelet judge by them. Rollback goes by what the cluster shows: our pod's reservation goes; the devices go
if the request brought them and nobody else is left.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Annotated, ClassVar

import anyio
from pydantic import BaseModel, ConfigDict, Field

from controller.kai.names import PODS
from controller.kai.outcome import Failed, Outcome
from controller.kai.reasons import Reason
from controller.kai.request import BindRequest
from controller.plugins.base import BindContext, Plugin
from controller.plugins.claims.api import ClaimApi, NotServedError, retrying
from controller.plugins.claims.attempt import ClaimBinding
from controller.plugins.claims.extended import ExtendedClaims
from controller.plugins.claims.model import pod_claims
from controller.runtime import errors
from controller.runtime.client import Client, Object
from controller.runtime.locks import KeyedLock

Seconds = Annotated[int, Field(alias="bindTimeoutSeconds", ge=-(2**63), lt=2**63)]


class Arguments(BaseModel):
    """Arguments of dynamicresources."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bind_timeout_s: Seconds


class RollbackError(Exception):
    """Something of a failed attempt could not be taken back; the message has all of it."""


class DynamicResources(Plugin):
    """Allocates the resource claims of a pod and reserves them for it."""

    name = "dynamicresources"
    condition_type = "DynamicResources"
    priority = 200
    default_arguments: ClassVar = {"bindTimeoutSeconds": "120"}
    arguments_model = Arguments

    def __init__(self, client: Client, arguments: BaseModel) -> None:
        super().__init__(client, arguments)
        assert isinstance(arguments, Arguments)  # noqa: S101 -- the contract of Plugin
        self._timeout_s = arguments.bind_timeout_s
        self._claims = ClaimApi(client)
        self._extended = ExtendedClaims(client, self._claims)
        self._locks: KeyedLock[tuple[str, str]] = KeyedLock()

    def concerns(self, context: BindContext) -> bool:
        """A pod with claims, a request that brings devices (B-52), or what an earlier one left on the pod."""
        request, pod = context.request, context.pod
        return bool(
            pod["spec"].get("resourceClaims")
            or request.claim_allocations
            or request.extended_claim is not None
            or (pod.get("status") or {}).get("extendedResourceClaimStatus")
        )

    async def prepare(self, context: BindContext) -> Failed | None:
        """Refuses what can never be, and spares others a GPU reservation that would be given up at once."""
        problem = _fault(context.request, context.pod)
        if problem:
            return Failed(Reason.INVALID_REQUEST, problem, retry=False)
        if not context.request.is_fraction:
            return None  # nothing is reserved before these claims, so they are looked at only once
        try:
            return await self._binding(context).obstacle()
        except NotServedError as error:
            return _not_served(context, error)

    async def pre_bind(self, context: BindContext) -> Outcome:
        """Allocates and reserves all claims of the pod, in the order in which the pod names them."""
        request, binding = context.request, self._binding(context)
        with anyio.move_on_after(self._timeout_s):
            try:
                return await binding.run()
            except NotServedError as error:
                return _not_served(context, error)
        text = f"the claims of pod {request.namespace}/{request.pod_name} were not ready on node"
        text = f"{text} {request.node_name} within {self._timeout_s} s; it ended while {binding.step}"
        return Failed(Reason.BIND_TIMEOUT, text)

    def _binding(self, context: BindContext) -> ClaimBinding:
        return ClaimBinding(self.client, self._claims, context, partial(self._turn, context))

    async def rollback(self, context: BindContext) -> None:
        """Takes back what is there of this request's work, unless the pod is on a node by now.

        Raises:
            RollbackError: Some of it stays; the rest was taken back all the same.
        """
        pod = await retrying(lambda: self._live_pod(context), stubborn=True)
        if pod is not None and pod["spec"].get("nodeName"):
            return
        faults = []
        for fault, work in self._releases(context, pod):
            try:
                await work()
            except NotServedError:
                return
            except errors.ApiError as error:
                faults.append(f"{fault}: {error.message}")
        if faults:
            raise RollbackError("; ".join(faults))

    def _releases(
        self, context: BindContext, pod: Object | None
    ) -> Iterator[tuple[str, Callable[[], Awaitable[object]]]]:
        """The steps of a rollback, each with what is to be said if it fails."""
        request = context.request
        brought = {item.get("name") for item in request.claim_allocations}
        for claim in pod_claims(pod or context.pod)[0]:
            yield (
                f"claim {request.namespace}/{claim.name} stays reserved on node {request.node_name}",
                partial(self._release, context, claim.name, deallocate=claim.entry in brought),
            )
        if request.extended_claim is not None:
            yield (
                f"the claim for extended resources of pod {request.namespace}/{request.pod_name} stays",
                partial(self._extended.discard, request.namespace, context.pod["metadata"]["uid"]),
            )
        if request.extended_claim is not None and pod is not None:
            clear = partial(self._extended.tell, pod, None)
            yield "its name stays in the pod's status", partial(retrying, clear, stubborn=True)

    async def _live_pod(self, context: BindContext) -> Object | None:
        """The pod as it is; None if it is gone, perhaps replaced by another."""
        metadata = context.pod["metadata"]
        try:
            pod = await self.client.get(PODS, metadata["name"], metadata["namespace"])
        except errors.NotFoundError:
            return None
        return pod if pod["metadata"]["uid"] == metadata["uid"] else None

    async def _release(self, context: BindContext, name: str, *, deallocate: bool) -> None:
        """Takes our pod out of a claim's users."""
        namespace, uid = context.request.namespace, context.pod["metadata"]["uid"]
        async with self._turn(context, name):
            await self._claims.release(namespace, name, uid, deallocate=deallocate)

    def _turn(self, context: BindContext, name: str) -> AbstractAsyncContextManager[None]:
        """Has the requests of this process write a claim one after the other, instead of colliding."""
        namespace = context.request.namespace
        what = f"its turn to write claim {namespace}/{name}, which many pods share"
        return self._locks.hold((namespace, name), lambda: context.waiting(what))


def _not_served(context: BindContext, error: NotServedError) -> Failed:
    request = context.request
    text = f"pod {request.namespace}/{request.pod_name} needs resource claims on node {request.node_name}"
    return Failed(Reason.UNSUPPORTED, f"{text}, but {error}")


def _fault(request: BindRequest, pod: Object) -> str | None:
    """What is wrong with the devices that a request brings, apart from any claim."""
    entries = [item["name"] for item in pod["spec"].get("resourceClaims") or ()]
    seen: set[object] = set()
    for index, item in enumerate(request.claim_allocations):
        path, entry = f"spec.resourceClaimAllocations[{index}]", item.get("name")
        if entry not in entries:
            known = ", ".join(entries) or "none"
            return (
                f"{path} is for claim {entry!r}, which pod {request.pod_name} does not have; it has {known}"
            )
        if entry in seen:
            return f"{path} is the second one for claim {entry!r}"
        if not item.get("allocation"):
            return f"{path}, for claim {entry!r}, brings no allocation"
        seen.add(entry)
    extended = request.extended_claim
    if extended is None:
        return None
    lacking = [
        name for name in ("allocation", "deviceRequests", "containerMappings") if not extended.get(name)
    ]
    return f"spec.extendedResourceClaimAllocation has no {', no '.join(lacking)}" if lacking else None
