"""The GPU memory limit of a share: opt-in, and of no use without gpusharing. Refuses, so far."""

from controller.api import Reason
from controller.plugins.base import BindContext, Failed, Outcome, Plugin


class GPUMemoryLimit(Plugin):
    """Caps the GPU memory that a container with a share can use."""

    name = "gpumemorylimit"
    condition_type = "GPUMemoryLimit"
    requires = ("gpusharing",)
    aliases = ("hamicore",)
    priority = 50
    enabled = False

    def concerns(self, context: BindContext) -> bool:
        """Whole GPUs and MIG instances have limits of their own."""
        return context.request.is_fraction

    async def pre_bind(self, context: BindContext) -> Outcome:
        """Refuses: the user asked for a cap, so no pod may run without one."""
        return Failed(Reason.UNSUPPORTED, "this version of the binder does not limit GPU memory", retry=False)
