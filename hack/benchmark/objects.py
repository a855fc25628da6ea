"""What the benchmarks create: pods as KAI's webhook leaves them, requests as its scheduler writes them."""

from collections.abc import Sequence
from typing import Any

Object = dict[str, Any]

NAMESPACE = "bench"
NODE = "bench-node"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"
RESERVATIONS = "/api/v1/namespaces/kai-resource-reservation/pods"
CLAIMS = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
REQUESTS = f"/apis/scheduling.run.ai/v1alpha2/namespaces/{NAMESPACE}/bindrequests"
SELECTED_NODE = "volume.kubernetes.io/selected-node"


def pod(name: str, *, group: str = "", padding: int = 0, claims: Sequence[str] = ()) -> Object:
    """A pod of KAI's scheduler; with a group, as its webhook leaves one that shares a GPU."""
    annotations = {"padding": "x" * padding} if padding else {}
    container: Object = {"name": "main", "image": "busybox"}
    spec: Object = {"schedulerName": "kai-scheduler", "containers": [container]}
    if group:
        maps = f"{name}-shared-gpu"
        annotations |= {"gpu-fraction": "0.5", "runai/shared-gpu-configmap": maps}
        reference = {"configMapKeyRef": {"name": f"{maps}-0", "key": "NVIDIA_VISIBLE_DEVICES"}}
        container["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": reference}]
        container["envFrom"] = [{"configMapRef": {"name": f"{maps}-0-evar"}}]
    if claims:
        spec["volumes"] = [
            {"name": f"data-{number}", "persistentVolumeClaim": {"claimName": claim}}
            for number, claim in enumerate(claims)
        ]
    return {"metadata": {"name": name, "annotations": annotations}, "spec": spec}


def bind_request(name: str, owner_uid: str, *, group: str = "", attempts: int = 0) -> Object:
    """The scheduler's decision for a pod; with `attempts`, it is tried so often."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": owner_uid}
    spec: Object = {"podName": name, "selectedNode": NODE, "receivedResourceType": "Regular"}
    if group:
        shared = {"receivedGPU": {"count": 1, "portion": "0.50"}, "selectedGPUGroups": [group]}
        spec |= {"receivedResourceType": "Fraction", **shared}
    if attempts:
        spec["backoffLimit"] = attempts
    kind = {"apiVersion": "scheduling.run.ai/v1alpha2", "kind": "BindRequest"}
    return {**kind, "metadata": {"name": name, "ownerReferences": [owner]}, "spec": spec}


def storage_class(name: str, *, provisioner: str) -> Object:
    """A class whose claims are bound once a pod wants them."""
    mode = {"volumeBindingMode": "WaitForFirstConsumer"}
    return {"metadata": {"name": name}, "provisioner": provisioner, **mode}


def claim(name: str, storage: str, *, volume: str = "") -> Object:
    """A claim of 1Gi, for many pods; with a volume, it asks for that one."""
    spec: Object = {
        "storageClassName": storage,
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    if volume:
        spec["volumeName"] = volume
    return {"metadata": {"name": name}, "spec": spec}


def volume(name: str, storage: str, *, claim_name: str = "") -> Object:
    """A volume of 1Gi, free or kept for a claim."""
    spec: Object = {
        "storageClassName": storage,
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "persistentVolumeReclaimPolicy": "Retain",
        "nfs": {"server": "nfs.example.com", "path": f"/{name}"},
    }
    if claim_name:
        spec["claimRef"] = {"namespace": NAMESPACE, "name": claim_name}
    return {"metadata": {"name": name}, "spec": spec}
