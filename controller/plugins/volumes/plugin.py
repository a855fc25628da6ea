"""Persistent volumes: a pod is bound only once its claims are bound to volumes that its node can reach.

The work is that of `volumeattempt`; here is what the process knows of all attempts under way.
"""

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from controller.plugins.base import BindContext, Outcome, Plugin
from controller.plugins.volumes.attempt import Attempt, Holds, claim_names
from controller.runtime import errors
from controller.runtime.client import Client


class Arguments(BaseModel):
    """Arguments of volumebinding."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bind_timeout_s: Annotated[int, Field(alias="bindTimeoutSeconds", ge=0, lt=2**63)]


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
        self._volumes = Holds()  # by name, for a claim's uid
        self._claims = Holds()  # by uid, for a node

    def concerns(self, context: BindContext) -> bool:
        """Only claims, own or generic ephemeral ones, need anything; other volumes are the kubelet's."""
        return any(claim_names(context.pod))

    async def pre_bind(self, context: BindContext) -> Outcome:
        """Checks each claim of the pod, has the unbound ones bound, and waits for it."""
        assert isinstance(self.arguments, Arguments)  # noqa: S101 -- the plugin's own model
        attempt = Attempt(self.client, context, self._volumes, self._claims)
        try:
            return await attempt.run(self.arguments.bind_timeout_s)
        except errors.ApiError as error:
            error.message = attempt.with_ties(error.message)
            raise
        finally:
            attempt.release()
