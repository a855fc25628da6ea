"""Resource claims (DRA): allocates them and reserves them for the pod. Refuses them, so far."""

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from controller.api import Reason
from controller.plugins.base import BindContext, Failed, Outcome, Plugin

Seconds = Annotated[int, Field(alias="bindTimeoutSeconds", ge=-(2**63), lt=2**63)]


class Arguments(BaseModel):
    """Arguments of dynamicresources."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bind_timeout_s: Seconds


class DynamicResources(Plugin):
    """Allocates the resource claims of a pod."""

    name = "dynamicresources"
    condition_type = "DynamicResources"
    priority = 200
    default_arguments: ClassVar = {"bindTimeoutSeconds": "120"}
    arguments_model = Arguments

    def concerns(self, context: BindContext) -> bool:
        """A pod with claims, or a request that brings allocations (B-52)."""
        request = context.request
        return bool(
            context.pod["spec"].get("resourceClaims") or request.claim_allocations or request.extended_claim
        )

    async def pre_bind(self, context: BindContext) -> Outcome:
        """Refuses: a pod must never be bound with its claims ignored."""
        return Failed(
            Reason.UNSUPPORTED, "this version of the binder does not allocate resource claims", retry=False
        )
