"""Which image the binder itself runs, as far as texts tell; the reading of its pod is in tests/apiserver."""

from pathlib import Path

import pytest

from controller.reservation.image import image_of, own_pod, repository
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
