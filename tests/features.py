"""What the API server of these tests can do, asked of the server itself: tests are for some servers only."""

import re

import pytest
from controlplane import ControlPlane

DRA = "DynamicResourceAllocation"
EXTENDED_RESOURCES = "DRAExtendedResource"
BINDING_CONDITIONS = "DRADeviceBindingConditions"
LABELS_ARE_COPIED = "PodTopologyLabelsAdmission"
"""With it the labels of a Binding reach the pod."""
STATUS_RIGHTS = "DRAResourceClaimGranularStatusAuthorization"


def needs(*gates: str) -> pytest.MarkDecorator:
    """Marks tests that are skipped unless the server of fixture `control_plane` has these gates on."""
    return pytest.mark.needs(*gates)


def is_on(plane: ControlPlane, gate: str) -> bool:
    """Whether a server has a feature gate, and it is on."""
    found = re.search(
        rf'^kubernetes_feature_enabled{{name="{gate}",.*}} (\d)$', plane.metrics(), re.MULTILINE
    )
    return found is not None and found[1] == "1"


@pytest.fixture(autouse=True)
def skip_where_it_cannot(request: pytest.FixtureRequest) -> None:
    """Skips a test where the server lacks what the test needs; conftest.py of a folder takes it in."""
    gates = [gate for mark in request.node.iter_markers("needs") for gate in mark.args]
    if gates:
        skip_without(request.getfixturevalue("control_plane"), *gates)


def skip_without(plane: ControlPlane, *gates: str) -> None:
    """Skips the running test where one of these feature gates is missing or off."""
    for gate in gates:
        if not is_on(plane, gate):
            pytest.skip(
                f"this server, Kubernetes {plane.kubernetes}, has feature gate {gate} off or lacks it"
            )
