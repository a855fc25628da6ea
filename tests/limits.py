"""Pods that share GPUs with a limit of their memory, and the binder that sets it."""

from dataclasses import dataclass

from controller.runtime.client import Object
from tests.binder import Binder
from tests.cluster import MERGE
from tests.proxy import Proxy
from tests.sharing import RESERVATIONS, VARIABLES, PodOptions, Sharing

LIMIT = "CUDA_DEVICE_MEMORY_LIMIT"
IN_MAP = (*VARIABLES, LIMIT)
ENABLED = {"BINDER_PLUGINS__GPUMEMORYLIMIT__ENABLED": "true"}
CARD = "nvidia.com/gpu.memory"
ORDER = ("GPUReserved", "VolumeBinding", "DynamicResources", "GPUSharing", "GPUMemoryLimit", "Bound")


class Limits(Sharing):
    """A namespace of pods whose webhook knows of the memory limit."""

    def card(self, label: str | None = "15360") -> str:
        """A node with GPUs of so much memory."""
        return self.node(labels={} if label is None else {CARD: label})

    def label(self, node: str, value: str | None) -> None:
        """Changes what a node says of its GPUs."""
        body = {"metadata": {"labels": {CARD: value}}}
        self.plane.request("PATCH", f"/api/v1/nodes/{node}", body, MERGE)

    def limited(
        self,
        name: str,
        node: str,
        *groups: str,
        pod: PodOptions | None = None,
        portion: str = "0.50",
        **spec: object,
    ) -> Object:
        """A pod and its request, as `share`; the container takes the limit from the first map."""
        options: PodOptions = {"in_map": IN_MAP, **(pod or {})}
        return self.share(name, node, *(groups or (self.group(),)), pod=options, portion=portion, **spec)

    def limit(self, name: str, index: str = "0") -> str | None:
        """The limit in the map of a pod."""
        return self.data(f"{name}-shared-gpu-{index}").get(LIMIT)

    def refusal(self, name: str, reason: str, step: str = "GPUMemoryLimit") -> str:
        """Waits for a request to fail for this reason, checks all that is said, and returns the message."""
        status = self.wait_for(name, "Failed")
        head, _, message = str(status["reason"]).partition(": ")
        assert head == f"{step} {reason}", status["reason"]
        conditions = self.conditions(name)
        assert (conditions[step]["status"], conditions[step]["reason"]) == ("False", reason)
        assert conditions[step]["message"] == message
        assert (conditions["Bound"]["status"], conditions["Bound"]["reason"]) == ("False", reason)
        assert (conditions["GPUReserved"]["status"], conditions["GPUReserved"]["reason"]) == (
            "Unknown",
            "Blocked",
        )
        event = self.wait_for_event(name, reason, "BindRequest")
        assert (event["type"], event["message"]) == ("Warning", f"{step}: {message}"[:1024])
        self.assert_unbound(name)
        assert self.group_labels(name) == {}
        return message


@dataclass(frozen=True, slots=True)
class Seen:
    """A binder, and the proxy that sees what it sends."""

    proxy: Proxy
    binder: Binder

    def writes(self, cluster: Limits) -> list[str]:
        """What it has written in a namespace and for reservations, but for statuses and events."""
        here = (f"/namespaces/{cluster.namespace}/", f"/namespaces/{RESERVATIONS}/")
        return [
            f"{call.method} {call.path}"
            for call in self.proxy.calls
            if call.method != "GET"
            and any(path in call.path for path in here)
            and not call.path.endswith("/status")
            and "/events" not in call.path
        ]
