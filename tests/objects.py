"""The Kubernetes objects that tests make, as small as the API server accepts them."""

from typing import Any

from controller.runtime.client import Object

SCHEDULER = "kai-scheduler"
REQUEST_VERSION = "scheduling.run.ai/v1alpha2"


def node(name: str, **labels: str) -> Object:
    """A node on paper; dashes and slashes of label names come by `labels={...}` of `Cluster.node`."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def pod(
    name: str,
    *,
    annotations: dict[str, str] | None = None,
    limits: dict[str, str] | None = None,
    claims: tuple[str, ...] = (),
    **spec: Any,  # noqa: ANN401
) -> Object:
    """A pod of KAI's scheduler with one container.

    Args:
        name: Of the pod.
        annotations: Of the pod.
        limits: Resources of the container.
        claims: PersistentVolumeClaims, a volume for each.
        **spec: More fields of the spec.
    """
    container: Object = {"name": "main", "image": "busybox", "resources": {"limits": limits or {}}}
    volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"schedulerName": SCHEDULER, "containers": [container], "volumes": volumes, **spec},
    }


def bind_request(name: str, spec: Object, owner: Object | None = None) -> Object:
    """A request; like the scheduler's, it is owned by its pod where one is given."""
    metadata: Object = {"name": name, "labels": {"selected-node": str(spec.get("selectedNode", ""))[:63]}}
    if owner is not None:
        kept = {key: owner["metadata"][key] for key in ("name", "uid")}
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", **kept}]
    return {"apiVersion": REQUEST_VERSION, "kind": "BindRequest", "metadata": metadata, "spec": spec}
