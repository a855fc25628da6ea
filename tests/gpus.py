"""Nodes, pods and requests as `kai-binder gpus` reads them, as small as it takes them."""

from typing import Any

from controller.explain.gpus.model import NodeGPUs, Picture
from controller.explain.gpus.picture import Names, Read, picture_of
from controller.runtime.client import Object

CARD_MIB = 16384
UUID = "GPU-00000000-0000-0000-0000-{:012d}"


def node(
    name: str = "n", *, gpus: object = "2", memory: str | None = str(CARD_MIB), **amounts: str
) -> Object:
    """A node; `amounts` are MIG slices by profile, with `_` for `.`."""
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100"}
    if memory is not None:
        labels["nvidia.com/gpu.memory"] = memory
    allocatable: Object = {f"nvidia.com/mig-{key.replace('_', '.')}": value for key, value in amounts.items()}
    if gpus is not None:
        allocatable["nvidia.com/gpu"] = gpus
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": allocatable}}


def pod(name: str, *, namespace: str = "team", on: str = "n", **options: Any) -> Object:  # noqa: ANN401
    """A pod on a node.

    Args:
        name: Of the pod; its uid, too.
        namespace: Of the pod.
        on: Its node.
        **options: `labels`, `annotations`, `phase`, `limits`, `env`, `init`, `scheduler`, `going`.
    """
    metadata: Object = {
        "name": name,
        "namespace": namespace,
        "uid": f"{namespace}-{name}",
        "labels": options.get("labels", {}),
        "annotations": options.get("annotations", {}),
    }
    if options.get("going"):
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    limits = options.get("limits", {})
    container = {"name": "main", "resources": {"limits": limits}, "env": options.get("env", [])}
    spec: Object = {
        "nodeName": on,
        "schedulerName": options.get("scheduler", "kai-scheduler"),
        "containers": [container],
    }
    if "init" in options:
        spec["initContainers"] = options["init"]
    return {"metadata": metadata, "spec": spec, "status": {"phase": options.get("phase", "Running")}}


def user(name: str, group: str, fraction: str | None = "0.5", **options: Any) -> Object:  # noqa: ANN401
    """A pod with a share, as KAI's webhook and binder leave it."""
    asked = {"gpu-fraction": fraction, "gpu-memory": options.pop("memory", None)}
    annotations = {key: value for key, value in asked.items() if value is not None}
    annotations |= {"runai/shared-gpu-configmap": f"{name}-gpu", **options.pop("annotations", {})}
    labels = {"runai-gpu-group": group, **options.pop("labels", {})}
    return pod(name, labels=labels, annotations=annotations, **options)


def reservation(group: str, number: int | None = 1, name: str = "", **options: Any) -> Object:  # noqa: ANN401
    """A reservation pod that reports the device of this number."""
    annotations = {} if number is None else {"run.ai/reserve_for_gpu_index": UUID.format(number)}
    annotations |= options.pop("annotations", {})
    return pod(
        name or f"gpu-reservation-{group}",
        namespace="kai-resource-reservation",
        labels={"app": "kai-resource-reservation", "runai-gpu-group": group},
        annotations=annotations,
        limits={"nvidia.com/gpu": "1"},
        **options,
    )


BOUND = {"type": "Bound", "status": "True", "reason": "Reconciled"}


def request(
    owner: Object,
    *groups: str,
    portion: str = "0.50",
    phase: str = "Succeeded",
    **more: Any,  # noqa: ANN401
) -> Object:
    """The request that gave a pod its share."""
    metadata = owner["metadata"]
    reference = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": f"{metadata['uid']}-request",
            "generation": 1,
            "ownerReferences": [reference],
        },
        "spec": {
            "podName": metadata["name"],
            "selectedNode": owner["spec"]["nodeName"],
            "receivedResourceType": "Fraction",
            "receivedGPU": {"count": len(groups), "portion": portion},
            "selectedGPUGroups": list(groups),
            **more.get("spec", {}),
        },
        "status": {
            "phase": phase,
            "observedGeneration": 1,
            "conditions": [BOUND, *more.get("conditions", [])],
        },
    }


def picture(*items: Object, nodes: tuple[Object, ...] | None = None, **read: Any) -> Picture:  # noqa: ANN401
    """The picture of these pods, on one node of two GPUs unless others are given."""
    return picture_of(Read(nodes=(node(),) if nodes is None else nodes, pods=items, **read), Names())


def only_node(shown: Picture) -> NodeGPUs:
    """The one node of a picture."""
    (found,) = shown.nodes
    return found


def troubles(shown: Picture) -> list[str]:
    """What is wrong, in words for machines."""
    return [str(finding.trouble) for _, _, finding in shown.findings]
