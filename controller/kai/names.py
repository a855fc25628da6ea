"""The names that Kubernetes and KAI know: kinds, labels, annotations, variables."""

import re

from controller.runtime.client import Resource

BIND_REQUESTS = Resource("scheduling.run.ai/v1alpha2", "bindrequests")
PODS = Resource("v1", "pods")
CONFIG_MAPS = Resource("v1", "configmaps")
NODES = Resource("v1", "nodes", namespaced=False)
VOLUME_CLAIMS = Resource("v1", "persistentvolumeclaims")
VOLUMES = Resource("v1", "persistentvolumes", namespaced=False)
STORAGE_CLASSES = Resource("storage.k8s.io/v1", "storageclasses", namespaced=False)
CSI_DRIVERS = Resource("storage.k8s.io/v1", "csidrivers", namespaced=False)
CSI_NODES = Resource("storage.k8s.io/v1", "csinodes", namespaced=False)
CSI_CAPACITIES = Resource("storage.k8s.io/v1", "csistoragecapacities")
CLAIM_VERSIONS = ("v1", "v1beta2", "v1beta1", "v1alpha3")
"""Those of resource.k8s.io that are known, best first."""

RECEIVED_RESOURCE_TYPE = "received-resource-type"
NUMA_PLACEMENT = "kai.scheduler/numa-placement-predicted"
NUMA_MEMORY_GROUPS = "kai.scheduler/numa-memory-groups-predicted"
FRACTION = "Fraction"
"""The receivedResourceType of a shared GPU; `Regular`, `MigInstance` and empty need no reservation."""
MIG = "MigInstance"

LEASE_NAME = "2ad35f9c.kai.scheduler"
POD_BOUND = "PodBound"

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
LEGACY_VISIBLE_DEVICES = "RUNAI-VISIBLE-DEVICES"
NUM_OF_GPUS = "RUNAI_NUM_OF_GPUS"
PORTION = "GPU_PORTION"
MEMORY_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT"
SHARING_KEYS = frozenset({VISIBLE_DEVICES, LEGACY_VISIBLE_DEVICES, NUM_OF_GPUS, PORTION})
"""Variables, and keys of the ConfigMaps, that say which GPUs a container has."""

GROUP_LABEL = "runai-gpu-group"
GROUP_LABEL_PREFIX = f"{GROUP_LABEL}/"
GPU_INDEX = "run.ai/reserve_for_gpu_index"
USED_BY = "kai.scheduler/used-by-bind-request"
"""On a reservation: the uid of the last request that went by it in another shard than its own."""
CONFIG_MAP_PREFIX = "runai/shared-gpu-configmap"
TAKEN_OVER = "kai.scheduler/taken-over"
"""On a ConfigMap that was nobody's before a pod with a share took it over."""
GPU_FRACTION = "gpu-fraction"
GPU_MEMORY = "gpu-memory"
GPU_FRACTION_LIMIT = "gpu-fraction.limit"
GPU_MEMORY_LIMIT = "gpu-memory.limit"
DEVICE_COUNT = "gpu-fraction-num-devices"
CONTAINER_NAME = "gpu-fraction-container-name"
NODE_GPU_MEMORY = "nvidia.com/gpu.memory"
GPU_PRODUCT = "nvidia.com/gpu.product"
GPU_RESOURCE = "nvidia.com/gpu"
MIG_RESOURCE_PREFIX = "nvidia.com/mig-"
"""Of the resources that are slices of GPUs."""
FAKE_GPU_NODE = "run.ai/fake.gpu"

MAX_OBJECT_NAME = 253
"""Characters."""
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_OBJECT_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")


def is_object_name(text: str) -> bool:
    """Whether an object can have this name: a DNS subdomain.

    What cannot be one is nobody's name. It must not get into a path: the server takes what follows a slash
    for a subresource, even an escaped one.
    """
    return len(text) <= MAX_OBJECT_NAME and _OBJECT_NAME.fullmatch(text) is not None
