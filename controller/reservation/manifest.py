"""The pod that holds a shared GPU: how it is made, and what it says of itself. Pure (B-86…B-89)."""

import hashlib
import re
from collections.abc import Mapping

from msgspec import Struct, field

from controller.kai.fractions import RESERVATION_MODE
from controller.kai.names import FAKE_GPU_NODE, GPU_INDEX, GPU_RESOURCE, GROUP_LABEL
from controller.kai.nodepool import WHOLE, NodePool
from controller.kai.outcome import Failed
from controller.kai.pods import annotation, full_name
from controller.kai.reasons import Reason
from controller.kai.request import ComputeMode
from controller.kai.sharing import shown
from controller.runtime.client import Object

NAME_PREFIX = "gpu-reservation-"
"""Of the names that KAI's binders give, too."""

_FIPS_ONLY = "fips140=only,tlsmlkem=0"
"""KAI's agent is written in Go (N-14)."""
_DEVICE = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._:/]{0,127}")
_NO_DEVICES = frozenset({"all", "none", "void"})
"""Words that the container runtime takes for every GPU, or for none."""


class OwnPod(Struct, frozen=True):
    """The pod that the binder itself runs in."""

    namespace: str
    name: str


class Agent(Struct, frozen=True):
    """What a reservation pod runs.

    Attributes:
        image: Of the agent that reports the device.
        args: For the entry point of the image; empty leaves the image's own.
    """

    image: str
    args: tuple[str, ...] = ()


_FAKE = Agent("ubuntu", ("sleep", "infinity"))


class ReservationOptions(Struct, frozen=True, kw_only=True):
    """What reservation pods look like and how long they may take.

    Attributes:
        scheduler_name: Of the scheduler whose pods share GPUs.
        namespace: Where they are made.
        service_account: They run as.
        app_label: Value of their label `app`.
        image: Of the agent that reports the device.
        image_is_set: Whether somebody chose it. If not, the binder's own is better, where that can be known.
        own_pod: The binder's own; None if it runs in none.
        timeout_s: Seconds for a pod to report its device.
        resources: ResourceRequirements beside the GPU.
        pod_security_context: Or None.
        container_security_context: Or None.
        priority_class_name: Empty for none.
        runtime_class_name: Empty for none.
        fake_gpu_nodes: Whether nodes may have fake GPUs, where the agent cannot run.
        fips_only: Whether the agent may only use cryptography that FIPS 140-3 allows.
        scale_adjust_namespace: Where the autoscaler's pods wait for new nodes.
        pool: The node pool that is served.
    """

    scheduler_name: str
    namespace: str
    service_account: str
    app_label: str
    image: str
    timeout_s: float
    image_is_set: bool = True
    own_pod: OwnPod | None = None
    resources: Object = field(default_factory=dict)
    pod_security_context: Object | None = None
    container_security_context: Object | None = None
    priority_class_name: str = ""
    runtime_class_name: str = ""
    fake_gpu_nodes: bool = False
    fips_only: bool = False
    scale_adjust_namespace: str = ""
    pool: NodePool = WHOLE


def reservation_name(node_name: str, group: str) -> str:
    """The name, always the same for a GPU, so that nobody can make two."""
    digest = hashlib.sha256(f"{node_name}/{group}".encode()).digest()
    return f"{NAME_PREFIX}{digest[:8].hex()}"


def has_our_name(reservation: Object, group: str) -> bool:
    """Whether a reservation pod has the name that this binder gives; older ones have others."""
    node_name = reservation["spec"].get("nodeName") or ""
    return bool(reservation["metadata"]["name"] == reservation_name(node_name, group))


def device_of(reservation: Object) -> str | Failed | None:
    """The device that a reservation pod names; None while it has said nothing."""
    text = annotation(reservation, GPU_INDEX)
    if not text:
        return None
    if _DEVICE.fullmatch(text) and text.lower() not in _NO_DEVICES:
        return text
    message = f"reservation pod {full_name(reservation)} reports {shown(text)}, which is not one device"
    return Failed(Reason.RESERVATION_FAILED, message)


def mode_of(reservation: Object) -> str:
    """How the users of a reservation's GPU share its compute units."""
    return annotation(reservation, RESERVATION_MODE) or ComputeMode.TIME_SLICING


def reservation_pod(
    options: ReservationOptions,
    agent: Agent,
    node: Object,
    group: str,
    user: Object,
    mode: ComputeMode | None = None,
) -> Object:
    """The pod to be created.

    Args:
        options: The settings.
        agent: What it runs.
        node: Where the GPU is.
        group: Its name.
        user: The first pod that gets a share; its tolerations are taken over.
        mode: How its users share the compute units; None where the request does not speak of modes, so that a
            scheduler that knows none sees nothing new.
    """
    node_name = node["metadata"]["name"]
    spec: Object = {
        "nodeName": node_name,
        "serviceAccountName": options.service_account,
        "tolerations": [dict(item) for item in user["spec"].get("tolerations") or ()],
        "containers": [_container(options, agent)],
    }
    for name, value in (
        ("priorityClassName", options.priority_class_name),
        ("runtimeClassName", options.runtime_class_name),
        ("securityContext", options.pod_security_context),
    ):
        if value:
            spec[name] = value
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": reservation_name(node_name, group),
            "namespace": options.namespace,
            "labels": {**options.pool.labels, "app": options.app_label, GROUP_LABEL: group},
            "annotations": _annotations(mode),
        },
        "spec": spec,
    }


def stand_in(options: ReservationOptions, node: Object) -> Agent | None:
    """What takes the agent's place on a node with fake GPUs; None elsewhere.

    Nothing is there to be found: it only keeps the place, and others write the index.
    """
    labels: Mapping[str, str] = node["metadata"].get("labels") or {}
    return _FAKE if options.fake_gpu_nodes and labels.get(FAKE_GPU_NODE) == "true" else None


def _annotations(mode: ComputeMode | None) -> dict[str, str]:
    kept = {"karpenter.sh/do-not-disrupt": "true"}
    return kept if mode is None else {**kept, RESERVATION_MODE: str(mode)}


def _container(options: ReservationOptions, agent: Agent) -> Object:
    container: Object = {
        "name": "resource-reservation",
        "image": agent.image,
        "imagePullPolicy": "IfNotPresent",
        "env": [
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
            for name, path in (("POD_NAME", "metadata.name"), ("POD_NAMESPACE", "metadata.namespace"))
        ],
        "resources": {name: _with_gpu(options.resources.get(name)) for name in ("requests", "limits")},
    }
    if agent.args:
        container["args"] = [*agent.args]
    if options.fips_only:
        container["env"].append({"name": "GODEBUG", "value": _FIPS_ONLY})
    if options.container_security_context:
        container["securityContext"] = options.container_security_context
    return container


def _with_gpu(amounts: Mapping[str, object] | None) -> Object:
    """The amounts as set, and one GPU whatever is set for that."""
    return {**(amounts or {}), GPU_RESOURCE: "1"}
