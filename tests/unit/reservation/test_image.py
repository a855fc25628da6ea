"""Which image the binder itself runs, as far as texts tell; the reading of its pod is in tests/apiserver."""

from pathlib import Path

import pytest

from controller.reservation.image import image_of, is_same_name, own_pod, repository
from controller.reservation.manifest import OwnPod

DIGEST = f"sha256:{'0a' * 32}"


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("agent", "agent"),
        ("agent:v1", "agent"),
        (f"agent@{DIGEST}", "agent"),
        (f"team/agent:v1@{DIGEST}", "team/agent"),
        ("localhost:5000/agent", "localhost:5000/agent"),
        ("localhost:5000/agent:v1", "localhost:5000/agent"),
        (f"[::1]:5000/team/agent:v1@{DIGEST}", "[::1]:5000/team/agent"),
        ("", ""),
    ],
)
def test_the_repository_of_an_image(image: str, name: str) -> None:
    assert repository(image) == name


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("acme/kai-binder:v1", "docker.io/acme/kai-binder:v2", True),
        ("acme/kai-binder", f"index.docker.io/acme/kai-binder@{DIGEST}", True),
        ("kai-binder", "docker.io/library/kai-binder:v1", True),
        ("library/kai-binder", "docker.io/kai-binder", True),
        ("kai-binder", "kai-binder:v1", True),
        ("kai-binder", "acme/kai-binder", False),
        ("acme/kai-binder", "docker.io/library/acme/kai-binder", False),
        ("kai-binder", "registry.example.com/library/kai-binder", False),
        ("acme/kai-binder", "registry.example.com/acme/kai-binder", False),
        ("acme/kai-binder", "registry.example.com/docker.io/acme/kai-binder", False),
        ("docker.io:5000/acme/kai-binder", "acme/kai-binder", False),
    ],
)
def test_names_that_mean_one_repository(one: str, other: str, is_same: bool) -> None:
    """What a runtime takes a name for that names no registry."""
    assert is_same_name(one, other) is is_same
    assert is_same_name(other, one) is is_same


@pytest.mark.parametrize(
    ("environ", "namespace", "pod"),
    [
        ({"POD_NAME": "b", "POD_NAMESPACE": "n"}, "m", OwnPod("n", "b")),
        ({"POD_NAME": "b", "POD_NAMESPACE": "n"}, None, OwnPod("n", "b")),
        ({"POD_NAME": "b"}, "m\n", OwnPod("m", "b")),
        ({"POD_NAMESPACE": "n"}, None, OwnPod("n", "host")),
        ({}, "m", OwnPod("m", "host")),
        ({"POD_NAME": "b"}, None, None),
        ({}, "", None),
        ({}, None, None),
    ],
)
def test_the_own_pod(
    tmp_path: Path, environ: dict[str, str], namespace: str | None, pod: OwnPod | None
) -> None:
    file = tmp_path / "namespace"
    if namespace is not None:
        file.write_text(namespace)
    assert own_pod(environ, "host", file) == pod


@pytest.mark.parametrize(
    ("containers", "image"),
    [
        ({"binder": "a"}, "a"),
        ({"x": "a"}, "a"),
        ({"x": "a", "binder": "b"}, "b"),
        ({"x": "a", "y": "b"}, None),
    ],
)
def test_the_container_of_the_binder(containers: dict[str, str], image: str | None) -> None:
    listed = [{"name": name, "image": found} for name, found in containers.items()]
    assert image_of({"spec": {"containers": listed}}) == image
