"""The example that must hold: the memory limit is on, the sharing that it needs is off."""

from tests.binder import Binders
from tests.cluster import Cluster


def test_a_memory_limit_without_sharing_refuses_fractions_and_nothing_else(
    cluster: Cluster, binders: Binders
) -> None:
    binder = binders.start('--plugins={"gpusharing":{"enabled":false},"hamicore":{"enabled":true}}')
    gpu = {"count": 1, "portion": "0.50"}
    fraction = {"receivedResourceType": "Fraction", "receivedGPU": gpu, "selectedGPUGroups": ["g"]}
    cluster.pod_and_request("half", cluster.node(), **fraction)
    cluster.pod_and_request("cpu", cluster.node())
    cluster.wait_for("cpu", "Succeeded")
    status = cluster.wait_for("half", "Failed")
    text = "gpumemorylimit needs gpusharing, which is disabled; set BINDER_PLUGINS__GPUSHARING__ENABLED=true"
    assert status["reason"] == f"GPUMemoryLimit DependencyNotMet: {text}"
    condition = cluster.conditions("half")["GPUMemoryLimit"]
    assert (condition["status"], condition["reason"]) == ("False", "DependencyNotMet")
    event = cluster.wait_for_event("half", "DependencyNotMet", "BindRequest")
    assert (event["type"], event["message"]) == ("Warning", f"GPUMemoryLimit: {text}")
    cluster.assert_unbound("half")
    assert binder.log.count("A plugin's needs are not met") == 1


def test_the_same_with_the_two_in_the_wrong_order(cluster: Cluster, binders: Binders) -> None:
    binders.start('--plugins={"gpumemorylimit":{"enabled":true,"priority":150}}')
    gpu = {"count": 1, "portion": "0.50"}
    fraction = {"receivedResourceType": "Fraction", "receivedGPU": gpu, "selectedGPUGroups": ["g"]}
    cluster.pod_and_request("half", cluster.node(), **fraction)
    cluster.pod_and_request("cpu", cluster.node())
    cluster.wait_for("cpu", "Succeeded")
    reason = cluster.wait_for("half", "Failed")["reason"]
    assert reason.startswith("GPUMemoryLimit DependencyNotMet: gpumemorylimit needs gpusharing to run before")
    cluster.assert_unbound("half")
