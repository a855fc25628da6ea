"""What annotations of KAI v0.18 say of a container's share."""

import pytest

from controller.kai.fractions import (
    cdi_key,
    container_in,
    is_granted,
    is_settled,
    key,
    named_container,
    portion_limit_key,
    portion_limits,
)
from controller.kai.outcome import Failed
from controller.runtime.client import Object


def pod(**annotations: str) -> Object:
    return {
        "metadata": {"namespace": "team", "name": "a", "uid": "u", "annotations": annotations},
        "spec": {},
    }


def problem(**annotations: str) -> str:
    found = named_container(pod(**annotations))
    assert isinstance(found, Failed)
    assert (found.reason, found.retry) == ("InvalidGPUConfig", False)
    return found.message


ENDINGS = (
    *("gpu-memory.request", "gpu-memory.limit", "gpus.devices"),
    *("gpu-compute.mode", "gpu-compute.portion", "gpu-compute.request"),
)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", ["main", "a", "with-dashes", "gpus.devices"])
def test_each_key_names_its_container(name: str, ending: str) -> None:
    """N-36."""
    assert named_container(pod(**{f"nvidia.com/container.{name}.{ending}": "x"})) == name


def test_a_pod_without_such_keys_names_none() -> None:
    assert named_container(pod()) is None
    assert named_container({"metadata": {"name": "a"}, "spec": {}}) is None
    assert named_container(pod(**{"gpu-fraction-container-name": "main", "nvidia.com/other": "x"})) is None


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/container.main.gpu-memory",
        "nvidia.com/container.main",
        "nvidia.com/container..gpus.devices",
        "nvidia.com/container.gpus.devices",
        "nvidia.com/container.",
        "nvidia.com/container.main.gpus.devices.more",
    ],
)
def test_a_key_that_makes_no_sense_is_named(name: str) -> None:
    """N-37."""
    assert f"annotation {name} is not nvidia.com/container.<container> and one of" in problem(**{name: "x"})


def test_two_containers_are_one_too_many() -> None:
    """N-38."""
    found = problem(
        **{"nvidia.com/container.b.gpus.devices": "0", "nvidia.com/container.a.gpu-memory.limit": "1Gi"}
    )
    assert "are for containers a and b; only one may share a GPU" in found


def test_both_ways_to_name_the_container_must_agree() -> None:
    """N-39."""
    keys = {"nvidia.com/container.a.gpus.devices": "0"}
    assert named_container(pod(**keys, **{"gpu-fraction-container-name": "a"})) == "a"
    found = problem(**keys, **{"gpu-fraction-container-name": "b"})
    assert "are for container a, but gpu-fraction-container-name says 'b'" in found


def test_the_keys() -> None:
    assert key("main", "gpus.devices") == "nvidia.com/container.main.gpus.devices"
    assert portion_limit_key("main") == "kai.scheduler/container.main.gpu-memory.portion.limit"
    assert cdi_key("main") == "nvidia.cdi.k8s.io/container.main"


def test_what_is_asked_for_and_what_was_given() -> None:
    """N-77: nobody but a binder knows the latter."""
    asked = {
        key("main", ending) for ending in ENDINGS if ending not in ("gpus.devices", "gpu-compute.portion")
    }
    given = {
        key("main", "gpus.devices"),
        key("main", "gpu-compute.portion"),
        "nvidia.com/container.gpus.devices",
    }
    by_cdi = {cdi_key("main"), "nvidia.cdi.k8s.io/pod", "nvidia.cdi.k8s.io"}
    other = {
        "nvidia.com/container.main.status",
        "nvidia.com/gpus.devices",
        "nvidia.cdi.k8s.io.example.com/x",
        "x",
    }
    names = asked | given | by_cdi | other | {portion_limit_key("main")}
    assert {name for name in names if is_settled(name)} == asked | {portion_limit_key("main")}
    assert {name for name in names if is_granted(name, cdi=False)} == given
    assert {name for name in names if is_granted(name, cdi=True)} == given | by_cdi


@pytest.mark.parametrize(
    ("name", "container"),
    [
        (key("main", "gpus.devices"), "main"),
        (cdi_key("main"), "main"),
        ("nvidia.com/container.gpus.devices", None),
        ("nvidia.com/container.main.other", None),
        ("nvidia.cdi.k8s.io/pod", None),
        ("gpu-memory", None),
    ],
)
def test_the_container_in_a_name(name: str, container: str | None) -> None:
    assert container_in(name) == container


def test_portion_limits() -> None:
    names = [
        portion_limit_key("main"),
        "kai.scheduler/container..gpu-memory.portion.limit",
        "kai.scheduler/container.x",
    ]
    assert list(portion_limits(names)) == [(names[0], "main")]
