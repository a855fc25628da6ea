"""Pods of KAI's cluster, as their authors wrote them: prepared by our webhook they end as those by KAI's."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress

import pytest
from controlplane import ControlPlane, RequestError

from controller.runtime.client import Object
from tests.apiserver.binder.test_kai_data import read, told
from tests.apiserver.sharing.test_kai_data import EXACT, SHARED, items, prepare
from tests.binder import Binders
from tests.certificates import Mount
from tests.limits import ENABLED, LIMIT
from tests.webhook import Keys, Users, Webhooks, installed

APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
PREFIX = "runai/shared-gpu-configmap"
NAMED = "gpu-fraction-container-name"
"""Ours always says which container it is; KAI's left that to its place."""
GROUP = "pod-group-name"
"""By KAI's pod grouper, which does not run here."""
OWN = "nvidia.com/container."
"""What ours says of the memory, as KAI does since v0.18 (N-73); the recorded webhook is v0.17's."""


@pytest.fixture(scope="module", autouse=True)
def webhook(control_plane: ControlPlane, webhooks: Webhooks, keys: Keys, mount: Mount) -> Iterator[None]:
    """One as KAI's was: with the memory limit, and the runtime class of that time."""
    with suppress(RequestError):  # it is there
        runtime = {"metadata": {"name": "nvidia"}, "handler": "nvidia"}
        control_plane.request("POST", "/apis/node.k8s.io/v1/runtimeclasses", runtime)
    flags = ("--binder-metrics-url=", "--gpu-fraction-runtime-class-name=nvidia")
    made = webhooks.make(*flags, mount=mount, env=ENABLED).start()
    with installed(made, control_plane, keys.authority):
        yield


def as_written(recorded: Object) -> Object:
    """What its author wrote, for any namespace."""
    written: Object = json.loads(recorded["metadata"]["annotations"][APPLIED])
    written["metadata"].pop("namespace")
    return written


def compared(pod: Object) -> Mapping[str, str]:
    """The annotations, without those that differ from pod to pod or from version to version."""
    annotations: Mapping[str, str] = pod["metadata"]["annotations"]
    return {
        name: text
        for name, text in annotations.items()
        if name not in (APPLIED, GROUP, PREFIX, NAMED) and not name.startswith(OWN)
    }


def maps_of(pod: Object, data: Mapping[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """What its ConfigMaps hold, by what their names end with."""
    prefix = pod["metadata"]["annotations"][PREFIX]
    return {name.removeprefix(prefix): held for name, held in data.items() if name.startswith(prefix)}


def test_they_end_alike(users: Users, binders: Binders) -> None:
    prepare(users)
    binders.start(env=ENABLED)
    expected, requests = items("Pod", "team"), read("kai-bindrequests.json", "BindRequest")
    for name in SHARED:
        assert users.apply(as_written(expected[name])) == f"pod/{name} created\n"
        users.request(name, requests[name]["spec"], users.get_pod(name))
    users.wait_for_all(len(SHARED))

    theirs = {name: dict(item.get("data") or {}) for name, item in items("ConfigMap", "team").items()}
    ours = {name: users.data(name) for name in users.all_config_maps()}
    for name in SHARED:
        found, recorded = users.get_pod(name), expected[name]
        assert found["spec"]["nodeName"] == recorded["spec"]["nodeName"]
        assert found["metadata"]["labels"] == recorded["metadata"]["labels"]
        assert compared(found) == compared(recorded)
        assert told(found) == told(recorded)
        of_old = recorded["metadata"]["annotations"].get(NAMED, "main")
        assert found["metadata"]["annotations"][NAMED] == of_old
        maps, wanted = maps_of(found, ours), maps_of(recorded, theirs)
        for held in wanted.values():
            if LIMIT in held and name in EXACT:
                held[LIMIT] = EXACT[name]
        assert maps == wanted
        assert len(maps) == 2
    groups = {group for name in SHARED for group in requests[name]["spec"]["selectedGPUGroups"]}
    users.plane.request("DELETE", f"{users.pods}?gracePeriodSeconds=0")
    users.wait_until_freed(*groups, within_s=30)
