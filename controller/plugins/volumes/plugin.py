"""Persistent volumes: a pod is bound only once its claims are bound to volumes that its node can reach.

The work is that of `attempt`; here is what the process knows of all attempts under way.
"""

from typing import Annotated, ClassVar

import anyio
from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field

from controller.kai.outcome import failed_by
from controller.plugins.base import BindContext, Failed, Outcome, Plugin, Prepared
from controller.plugins.volumes.attempt import Attempt, Common
from controller.plugins.volumes.holds import Holds
from controller.plugins.volumes.inspection import Inspection, claim_names
from controller.plugins.volumes.reads import Reads
from controller.plugins.volumes.shared import SHARED_S
from controller.runtime import errors
from controller.runtime.client import Client


class Arguments(BaseModel):
    """Arguments of volumebinding."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bind_timeout_s: Annotated[int, Field(alias="bindTimeoutSeconds", ge=0, lt=2**63)]


class _Looked(Struct, frozen=True):
    """What `prepare` hands to `pre_bind`: the claims that it looked at, and since when."""

    inspection: Inspection
    began_s: float


class VolumeBinding(Plugin):
    """Sees to it that a pod's persistent volumes are bound, and to its node.

    What is written is not taken back by a rollback: the volume controllers may have acted on it. Messages say
    which claim is tied to which node, and a later attempt for another node changes what can be changed.
    """

    name = "volumebinding"
    condition_type = "VolumeBinding"
    priority = 300
    default_arguments: ClassVar = {"bindTimeoutSeconds": "120"}
    arguments_model = Arguments

    def __init__(self, client: Client, arguments: BaseModel) -> None:
        super().__init__(client, arguments)
        self._common = Common(client, Reads(client), volumes=Holds(), claims=Holds())

    def concerns(self, context: BindContext) -> bool:
        """Only claims, own or generic ephemeral ones, need anything; other volumes are the kubelet's."""
        return any(claim_names(context.pod))

    async def prepare(self, context: BindContext) -> Prepared | Failed | None:
        """Looks at the claims before a GPU is reserved, since a pod without its volumes needs none."""
        if not context.request.is_fraction:
            return None  # there is nothing to spare
        began_s = anyio.current_time()
        inspection = Inspection(context, self._common.reads)
        failure = await inspection.look(None)
        if failure is not None:
            failure = await inspection.look(began_s)
        return failure or Prepared(found=_Looked(inspection, began_s))

    async def pre_bind(self, context: BindContext) -> Outcome:
        """Checks each claim of the pod, has the unbound ones bound, and waits for it."""
        assert isinstance(self.arguments, Arguments)  # noqa: S101 -- the plugin's own model
        looked, now_s = context.found, anyio.current_time()
        # A GPU may have been waited for meanwhile: claims that were bound then are looked at again.
        if not isinstance(looked, _Looked) or now_s - looked.began_s > SHARED_S:
            looked = _Looked(Inspection(context, self._common.reads), now_s)
        attempt = Attempt(self._common, context, looked.inspection, looked.began_s)
        try:
            return await attempt.run(self.arguments.bind_timeout_s)
        except errors.ApiError as error:
            if error.transient:
                raise
            return attempt.with_ties(failed_by(error))
        finally:
            attempt.release()
            self._common.reads.forget_old()
