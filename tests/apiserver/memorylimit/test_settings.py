"""The limit turned on and off, with and without what it needs: a binder of its own for each test."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from controlplane import ControlPlane

from tests.apiserver.memorylimit.conftest import ACCOUNT
from tests.binder import Binders
from tests.limits import ENABLED, LIMIT, ORDER, Limits
from tests.proxy import Proxy
from tests.sharing import VARIABLES

DISABLED = "gpumemorylimit needs gpusharing, which is disabled; set BINDER_PLUGINS__GPUSHARING__ENABLED=true"
ORDERED = (
    "gpumemorylimit needs gpusharing to run before it, but gpusharing runs after it; "
    "give gpusharing a higher priority than gpumemorylimit (BINDER_PLUGINS__GPUSHARING__PRIORITY)"
)
OF_THE_OPERATOR = {
    "volumebinding": {"enabled": True, "priority": 300, "arguments": {"bindTimeoutSeconds": "120"}},
    "dynamicresources": {"enabled": True, "priority": 200, "arguments": {"bindTimeoutSeconds": "120"}},
    "gpusharing": {"enabled": True, "priority": 100, "arguments": {"cdiEnabled": "false"}},
    "hamicore": {"enabled": True, "priority": 50},
}


def others_bind(cluster: Limits) -> None:
    """Requests for anything but a share are bound as ever."""
    node = cluster.card()
    for name, kind in (("cpu", "Regular"), ("mig", "MigInstance")):
        cluster.pod_and_request(name, node, receivedResourceType=kind)
    for name in ("cpu", "mig"):
        cluster.wait_for(name, "Succeeded")
        condition = cluster.conditions(name)["GPUMemoryLimit"]
        assert (condition["status"], condition["reason"]) == ("True", "NotApplicable")


def test_it_is_off_by_default(cluster: Limits, binders: Binders) -> None:
    binder = binders.start()
    cluster.limited("a", cluster.card())
    cluster.limited("b", cluster.card(None))  # nobody asks how much memory the card has
    for name in ("a", "b"):
        cluster.wait_for(name, "Succeeded")
        assert sorted(cluster.data(f"{name}-shared-gpu-0")) == sorted(VARIABLES)
        assert cluster.data(f"{name}-shared-gpu-0-evar") == {}
        assert tuple(cluster.conditions(name)) == tuple(name for name in ORDER if name != "GPUMemoryLimit")
    assert "GPUMemoryLimit" not in binder.log


@pytest.mark.parametrize(
    ("env", "text", "order"),
    [
        (
            {**ENABLED, "BINDER_PLUGINS__GPUSHARING__ENABLED": "false"},
            DISABLED,
            tuple(name for name in ORDER if name != "GPUSharing"),
        ),
        (
            {**ENABLED, "BINDER_PLUGINS__GPUMEMORYLIMIT__PRIORITY": "150"},
            ORDERED,
            (*ORDER[:3], "GPUMemoryLimit", "GPUSharing", "Bound"),
        ),
    ],
    ids=["disabled", "ordered after it"],
)
def test_dependency_not_met(
    cluster: Limits,
    binders: Binders,
    env: Mapping[str, str],
    text: str,
    order: tuple[str, ...],
) -> None:
    # Upstream does not start at all with such settings.
    binder = binders.start(env=env)
    group = cluster.group()
    cluster.limited("half", cluster.card(), group, backoffLimit=4)
    cluster.limited("memory", cluster.card(), pod={"memory": "4096"}, portion="0.27")
    # It is said even where other things are wrong as well.
    cluster.limited("wrong", cluster.card(None), pod={"memory": "4Gi"}, portion="NaN")
    for name in ("half", "memory", "wrong"):
        assert cluster.refusal(name, "DependencyNotMet") == text
        assert tuple(cluster.conditions(name)) == order
        assert cluster.reservations(group) == []
    assert cluster.status("half")["failedAttempts"] == 4  # more attempts would end the same
    assert cluster.all_config_maps() == []
    others_bind(cluster)
    (line,) = [line for line in binder.log.splitlines() if "A plugin's needs are not met" in line]
    assert text in line


def test_arguments(cluster: Limits, binders: Binders) -> None:
    arguments = {"fallbackMemoryMiB": "124610", "variable": "GPU_MEMORY_LIMIT", "format": "bytes"}
    binders.start(env={**ENABLED, "BINDER_PLUGINS__GPUMEMORYLIMIT__ARGUMENTS": json.dumps(arguments)})
    cluster.limited("labelled", cluster.card("15360"), pod={"memory": "4096"}, portion="0.27")
    cluster.limited("bare", cluster.card(None))
    cluster.limited("excess", cluster.card(None), pod={"memory": "124611"}, portion="1.00")
    for name, limit in (("labelled", "4294967296"), ("bare", "65331527680")):  # 62305 MiB
        cluster.wait_for(name, "Succeeded")
        assert LIMIT not in cluster.data(f"{name}-shared-gpu-0")
        # The webhook knows no such variable, so the container takes it from the map that it reads whole.
        assert cluster.data(f"{name}-shared-gpu-0-evar") == {"GPU_MEMORY_LIMIT": limit}
    assert "fallbackMemoryMiB" in cluster.conditions("bare")["GPUMemoryLimit"]["message"]
    assert "124610 MiB" in cluster.refusal("excess", "MemoryExceedsCard")


# failurePolicy


def test_a_limit_that_may_fail(cluster: Limits, binders: Binders) -> None:
    binders.start(env={**ENABLED, "BINDER_PLUGINS__GPUMEMORYLIMIT__FAILUREPOLICY": "Ignore"})
    cluster.limited("bare", cluster.card(None))
    cluster.limited("units", cluster.card(), pod={"memory": "4Gi"}, portion="0.27")
    cluster.limited("good", cluster.card())
    for name, reason in (("bare", "MemoryUnknown"), ("units", "InvalidGPUMemory")):
        cluster.wait_for(name, "Succeeded")
        condition = cluster.conditions(name)["GPUMemoryLimit"]
        assert (condition["status"], condition["reason"]) == ("False", reason)
        assert LIMIT not in cluster.data(f"{name}-shared-gpu-0")
        assert cluster.data(f"{name}-shared-gpu-0-evar") == {}
    cluster.wait_for("good", "Succeeded")
    assert cluster.limit("good") == "7680m"


def test_a_limit_that_may_fail_without_what_it_needs(cluster: Limits, binders: Binders) -> None:
    policy = {"BINDER_PLUGINS__GPUMEMORYLIMIT__FAILUREPOLICY": "Ignore"}
    binders.start(env={**ENABLED, **policy, "BINDER_PLUGINS__GPUSHARING__ENABLED": "false"})
    cluster.limited("a", cluster.card())
    cluster.wait_for("a", "Succeeded")
    condition = cluster.conditions("a")["GPUMemoryLimit"]
    assert (condition["status"], condition["reason"]) == ("False", "DependencyNotMet")
    assert condition["message"] == DISABLED


def test_sharing_may_fail_but_then_no_pod_runs_without_its_limit(cluster: Limits, binders: Binders) -> None:
    binders.start(env={**ENABLED, "BINDER_PLUGINS__GPUSHARING__FAILUREPOLICY": "Ignore"})
    node, groups = cluster.card(), [cluster.group(), cluster.group()]
    living = cluster.pod("living")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "living", "uid": living["metadata"]["uid"]}
    taken = {
        "metadata": {"name": "taken-shared-gpu-0", "ownerReferences": [owner]},
        "data": {LIMIT: "0m", "mine": "yes"},
    }
    cluster.plane.request("POST", cluster.config_maps, taken)
    cluster.limited("taken", node, groups[0])
    cluster.limited("wrong", node, groups[1], portion="1.5", pod={"memory": "4096"})
    for name, reason in (("taken", "ConfigMapConflict"), ("wrong", "InvalidPortion")):
        status = cluster.wait_for(name, "Failed")
        head = "GPUMemoryLimit DependencyNotMet: gpumemorylimit needs gpusharing, which failed: "
        assert status["reason"].startswith(head)
        conditions = cluster.conditions(name)
        assert (conditions["GPUSharing"]["status"], conditions["GPUSharing"]["reason"]) == ("False", reason)
        assert conditions["GPUMemoryLimit"]["message"].endswith(conditions["GPUSharing"]["message"])
        cluster.wait_for_event(name, "DependencyNotMet", "BindRequest")
        cluster.assert_unbound(name)
    assert cluster.data("taken-shared-gpu-0") == taken["data"]
    cluster.wait_until_freed(*groups)
    cluster.limited("good", node)
    cluster.wait_for("good", "Succeeded")
    assert cluster.limit("good") == "7680m"


# What it costs


def test_the_settings_of_upstreams_operator_cost_no_request_more(
    control_plane: ControlPlane, cluster: Limits, proxy: Proxy, tmp_path: Path
) -> None:
    kubeconfig = proxy.kubeconfig(control_plane.token(*ACCOUNT))
    sent: list[Counter[str]] = []
    for round_, flags in enumerate(((), ("--plugins", json.dumps(OF_THE_OPERATOR)))):
        (tmp_path / str(round_)).mkdir()
        binders = Binders(tmp_path / str(round_), kubeconfig)
        node, group, since = cluster.card(), cluster.group(), 0
        try:
            binders.start(*flags)
            for name in (f"first-{round_}", f"second-{round_}"):  # the first one has its GPU reserved
                since = len(proxy.calls)
                cluster.limited(name, node, group)
                cluster.wait_for(name, "Succeeded")
                cluster.wait_for_event(name, "Bound")
            binders.close()
        finally:
            binders.kill()
        calls = [call for call in proxy.calls[since:] if f"/namespaces/{cluster.namespace}/" in call.path]
        lines = [f"{call.method} {call.path.replace(name, 'NAME')}" for call in calls if not call.watches]
        sent.append(Counter(line for line in lines if "/events" not in line))
        assert cluster.limit(name) == ("7680m" if flags else None)
    assert tuple(cluster.conditions(name)) == ORDER
    off, on = sent
    assert on == off
    assert sum(on.values()) <= 6
