"""Shares of GPUs: tells the container which device it has. Refuses them, so far."""

from typing import Annotated, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from controller.api import Reason
from controller.plugins.base import BindContext, Failed, Outcome, Plugin

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def _go_bool(text: object) -> bool:
    """A boolean as Go's strconv.ParseBool reads it, since the operator writes it for Go (B-50)."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError("true or false is allowed")


class Arguments(BaseModel):
    """Arguments of gpusharing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cdi_enabled: Annotated[bool, BeforeValidator(_go_bool)] = Field(alias="cdiEnabled")


class GPUSharing(Plugin):
    """Gives a pod its share of one or more GPUs."""

    name = "gpusharing"
    condition_type = "GPUSharing"
    priority = 100
    default_arguments: ClassVar = {"cdiEnabled": "false"}
    arguments_model = Arguments

    def concerns(self, context: BindContext) -> bool:
        """Only fractions are shares."""
        return context.request.is_fraction

    async def pre_bind(self, context: BindContext) -> Outcome:
        """Refuses: binding a share without telling the container which one would give it every GPU."""
        return Failed(Reason.UNSUPPORTED, "this version of the binder does not share GPUs", retry=False)
