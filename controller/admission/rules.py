"""What the webhook is told, once for the whole process. Pure.

The composition root builds it from the settings that the binder has, so that both judge alike.
"""

from collections.abc import Mapping

from msgspec import Struct

GPUSHARING = "gpusharing"
NVFRACTIONS = "nvfractions"
GPUMEMORYLIMIT = "gpumemorylimit"


class Rules(Struct, frozen=True):
    """The settings of the webhook.

    Attributes:
        scheduler_name: Pods of other schedulers are left alone.
        plugins: Names of the enabled plugins in their order.
        unmet: Plugin -> why what it needs is not met, and what to set.
        nri: Whether a plugin of the container runtime gives the devices (gpusharing's nriPluginEnabled).
        limit_variable: That the limiter in the container reads (gpumemorylimit's `variable`).
        binder_account: User name that may write what only the binder may, such as
            `system:serviceaccount:kai-scheduler:binder`; empty means nobody (N-77).
        block_visible_devices: Whether containers without a GPU may not set NVIDIA_VISIBLE_DEVICES (B-118).
        runtime_class_name: For pods with a share; empty means none (B-117).
        failures_ignored: Plugins whose failure does not keep the binder from binding (failurePolicy Ignore).
    """

    scheduler_name: str
    plugins: tuple[str, ...]
    unmet: Mapping[str, str]
    nri: bool
    limit_variable: str
    binder_account: str
    block_visible_devices: bool
    runtime_class_name: str
    failures_ignored: frozenset[str] = frozenset()

    @property
    def shares_by_maps(self) -> bool:
        """Whether containers learn of their share by ConfigMaps."""
        return GPUSHARING in self.plugins

    @property
    def shares_by_annotations(self) -> bool:
        """Whether a component on the node learns of shares by annotations."""
        return NVFRACTIONS in self.plugins

    @property
    def limits_memory(self) -> bool:
        """Whether containers are to have a limit of GPU memory, and can have it."""
        return GPUMEMORYLIMIT in self.plugins and GPUMEMORYLIMIT not in self.unmet

    @property
    def unmet_limit(self) -> str | None:
        """Why there is no limit of GPU memory although it is switched on; None if there is, or it is off."""
        return self.unmet.get(GPUMEMORYLIMIT) if GPUMEMORYLIMIT in self.plugins else None

    @property
    def demands_limit(self) -> bool:
        """Whether a pod without its limit of GPU memory is not bound."""
        return GPUMEMORYLIMIT in self.plugins and GPUMEMORYLIMIT not in self.failures_ignored

    def is_binder(self, user: str) -> bool:
        """Whether a user may write what only the binder may."""
        return bool(self.binder_account) and user == self.binder_account
