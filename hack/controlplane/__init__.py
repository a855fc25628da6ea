"""A real Kubernetes control plane without containers: etcd, API server and controller manager as processes.

Used by the demo, the tests and the benchmarks::

    from controlplane import ControlPlane

    with ControlPlane(Path("plane")) as plane:
        print(plane.kubectl("get", "namespaces"))

There is no kubelet and no scheduler: whoever starts it plays their part.
"""

from controlplane.build import Binaries, BuildError, ensure_binaries, supported_kubernetes
from controlplane.client import RequestError
from controlplane.cluster import ControlPlane
from controlplane.process import ControlPlaneError

__all__ = [
    "Binaries",
    "BuildError",
    "ControlPlane",
    "ControlPlaneError",
    "RequestError",
    "ensure_binaries",
    "supported_kubernetes",
]
