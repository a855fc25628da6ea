"""The plugin dynamicresources: allocates and reserves device claims as the request says (B-61…B-68).

Order and fields of the writes are kube-scheduler's, since the API server, the resource claim controller and
the kubelet judge by them. Between two attempts claims stay as they are: reserved for the pod, so that
Kubernetes frees them with the pod should no binder live to do it. Rollback after the last attempt goes by
what the cluster shows: our pod's reservation goes; the devices go as well, if the request brought them and
nobody else is left.
"""

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Annotated, ClassVar, TypeVar

import anyio
from pydantic import BaseModel, ConfigDict, Field

from controller.kai.names import PODS
from controller.kai.outcome import Failed, Outcome
from controller.kai.reasons import Reason
from controller.kai.request import BindRequest
from controller.plugins.base import BindContext, Plugin, Prepared
from controller.plugins.claims.api import ClaimApi, NotServedError, Turns, retrying
from controller.plugins.claims.attempt import ClaimBinding, Tools
from controller.plugins.claims.extended import ExtendedClaims
from controller.plugins.claims.holders import Holders
from controller.plugins.claims.model import EXTENDED_STATUS, pod_claims
from controller.runtime import errors
from controller.runtime.client import Client, Object

T = TypeVar("T")

Seconds = Annotated[int, Field(alias="bindTimeoutSeconds", ge=-(2**63), lt=2**63)]


class Arguments(BaseModel):
    """Arguments of dynamicresources."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bind_timeout_s: Seconds


class RollbackError(Exception):
    """Something of a failed attempt could not be taken back; the message has all of it."""


class DynamicResources(Plugin):
    """Allocates the device claims of a pod and reserves them for it."""

    name = "dynamicresources"
    condition_type = "DynamicResources"
    priority = 200
    default_arguments: ClassVar = {"bindTimeoutSeconds": "120"}
    arguments_model = Arguments

    def __init__(self, client: Client, arguments: BaseModel) -> None:
        super().__init__(client, arguments)
        assert isinstance(arguments, Arguments)  # noqa: S101 -- the contract of Plugin
        self._timeout_s = arguments.bind_timeout_s
        api = ClaimApi(client)
        self._tools = Tools(client, api, ExtendedClaims(client, api), Turns(), Holders(api))

    def concerns(self, context: BindContext) -> bool:
        """A pod with device claims, a request with devices (B-52), or what an earlier one left on the pod."""
        request, pod = context.request, context.pod
        return bool(
            pod["spec"].get("resourceClaims")
            or request.claim_allocations
            or request.extended_claim is not None
            or (pod.get("status") or {}).get(EXTENDED_STATUS)
        )

    async def prepare(self, context: BindContext) -> Prepared | Failed | None:
        """Finds what can never be, and spares others a GPU reservation that would be given up at once."""
        problem = _problem(context.request, context.pod)
        if problem:
            return Failed(Reason.INVALID_REQUEST, problem, retry=False)
        if not context.request.is_fraction:
            return None  # nothing is reserved before these claims, so they are looked at only once
        binding = ClaimBinding(self._tools, context)
        found = await self._in_time(context, binding, binding.look)
        return found if isinstance(found, Failed) else Prepared(found=found)

    async def pre_bind(self, context: BindContext) -> Outcome:
        """Allocates and reserves all claims of the pod, in the order in which the pod names them."""
        binding = ClaimBinding(self._tools, context)
        return await self._in_time(context, binding, binding.run)

    async def _in_time(
        self, context: BindContext, binding: ClaimBinding, work: Callable[[], Awaitable[T]]
    ) -> T | Failed:
        """Does `work` of an attempt, for as long as the arguments allow."""
        name, node = context.request.full_pod_name, context.request.node_name
        binding.time.deadline = anyio.current_time() + self._timeout_s
        with binding.time:
            try:
                return await work()
            except NotServedError as error:
                text = f"pod {name} needs resource claims on node {node}, but {error}"
                return Failed(Reason.UNSUPPORTED, text)
        text = f"the claims of pod {name} were not ready on node {node} within {self._timeout_s} s"
        return Failed(Reason.BIND_TIMEOUT, f"{text}; it ended while {binding.step}")

    async def rollback(self, context: BindContext) -> None:
        """Takes back what is there of this request's work after its last attempt.

        Unless the pod is on a node by now. Between attempts devices and reservation go together: devices of a
        claim that is reserved for nobody are never freed if the retry does not come.

        Raises:
            RollbackError: Some of it stays; the rest was taken back all the same.
        """
        if not context.final:
            return
        pod = await retrying(lambda: self._live_pod(context), stubborn=True)
        if pod is not None and pod["spec"].get("nodeName"):
            return
        problems = []
        for problem, work in self._releases(context, pod):
            try:
                await work()
            except NotServedError:
                return
            except errors.ApiError as error:
                problems.append(f"{problem}: {error.message}")
        if problems:
            raise RollbackError("; ".join(problems))

    def _releases(
        self, context: BindContext, pod: Object | None
    ) -> Iterator[tuple[str, Callable[[], Awaitable[object]]]]:
        """The steps of a rollback, each with what is to be said if it fails."""
        request, known = context.request, pod or context.pod
        brought = {item.get("name"): item.get("allocation") for item in request.claim_allocations}
        for claim in pod_claims(known):
            if claim.name:
                yield (
                    f"claim {request.namespace}/{claim.name} stays reserved on node {request.node_name}",
                    partial(self._release, context, claim.name, brought.get(claim.entry)),
                )
        if request.extended_claim is None:
            return
        what = f"the claim for extended resources of pod {request.full_pod_name}"
        yield f"{what} stays", partial(self._tools.extended.discard, known)
        if pod is not None:
            clear = partial(retrying, partial(self._forget_extended, context), stubborn=True)
            yield f"{what} stays named in its status", clear

    async def _live_pod(self, context: BindContext) -> Object | None:
        """The pod as it is; None if it is gone, perhaps replaced by another."""
        metadata = context.pod["metadata"]
        try:
            pod = await self.client.get(PODS, metadata["name"], metadata["namespace"])
        except errors.NotFoundError:
            return None
        return pod if pod["metadata"]["uid"] == metadata["uid"] else None

    async def _release(self, context: BindContext, name: str, brought: Object | None) -> None:
        """Takes our pod out of a claim's users; the devices brought go too if nobody is left."""
        namespace, uid = context.request.namespace, context.pod["metadata"]["uid"]
        what = f"its turn to write claim {namespace}/{name}, which many pods share"
        async with self._tools.turns.take(namespace, name, lambda: context.waiting(what)):
            await self._tools.api.release(namespace, name, uid, brought)

    async def _forget_extended(self, context: BindContext) -> None:
        """Takes the name of the claim for extended resources out of the pod's status."""
        pod = await self._live_pod(context)
        if pod is not None and not pod["spec"].get("nodeName"):
            await self._tools.extended.tell(pod, None)


def _problem(request: BindRequest, pod: Object) -> str | None:
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
