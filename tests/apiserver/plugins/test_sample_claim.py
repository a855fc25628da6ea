"""The sample with a claim binds as it is shipped."""

import pytest
from controlplane.flags import claim_versions

from controller.runtime.client import Object
from tests.cluster import ROOT, Cluster
from tests.polling import wait_until


@pytest.mark.usefixtures("binder")
def test_the_sample_binds(cluster: Cluster) -> None:
    plane = cluster.plane
    if "v1" not in claim_versions(plane.kubernetes):
        pytest.skip(
            f"the sample is for resource.k8s.io/v1, which Kubernetes {plane.kubernetes} does not know"
        )
    for name in ("node", "claim"):
        plane.kubectl("apply", "-f", str(ROOT / f"config/samples/{name}.yaml"))
    default = Cluster(plane, "default")
    default.wait_for("claim", "Succeeded")
    assert default.node_of("claim") == "gpu-node-1"
    claim = wait_until(lambda: _claim(default))
    assert [item["name"] for item in claim["status"]["reservedFor"]] == ["claim"]


def _claim(cluster: Cluster) -> Object:
    path = f"/apis/resource.k8s.io/v1/namespaces/{cluster.namespace}/resourceclaims/one-gpu"
    return cluster.plane.request("GET", path)
