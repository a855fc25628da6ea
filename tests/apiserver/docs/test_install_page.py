"""Every command of docs/install.md and docs/migrate.md, in their order, where KAI's operator is played."""

import re
import shlex
from collections.abc import Iterator

import pytest
import yaml
from controlplane import ControlPlane, RequestError

from tests.apiserver.docs.operator import CONFIG, CRD, HOOKS, KAI_IMAGE, NAMESPACE, Operator
from tests.apiserver.docs.pages import PLACEHOLDERS, ROOT, commands, page, section
from tests.cluster import minor
from tests.polling import wait_until

OURS = "registry.example.com/acme/kai-binder:latest"
RBAC = "/apis/rbac.authorization.k8s.io/v1/clusterroles/kai-binder-python"
NO_KUBELET = ("logs ",)
"""What only a kubelet could answer."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A cluster in which KAI's chart was installed."""
    with ControlPlane(tmp_path_factory.mktemp("plane"), kubernetes=minor()) as made:
        made.kubectl("apply", "-f", str(ROOT / "config/default/namespaces.yaml"))
        made.kubectl("apply", "-f", str(ROOT / "tests/apiserver/data/upstream-crd.yaml"))
        made.kubectl("apply", "-f", "-", input=yaml.safe_dump(CRD))
        made.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        account = {"metadata": {"name": "kai-resource-reservation"}}
        made.request("POST", "/api/v1/namespaces/kai-resource-reservation/serviceaccounts", account)
        config = {"apiVersion": "kai.scheduler/v1", "kind": "Config", "metadata": {"name": "kai-config"}}
        made.request("POST", CONFIG.rpartition("/")[0], {**config, "spec": {}})
        yield made


@pytest.fixture(scope="module")
def operator(plane: ControlPlane) -> Iterator[Operator]:
    with Operator(plane) as playing:
        wait_until(lambda: playing.image() == KAI_IMAGE, within_s=60)
        yield playing


def run(plane: ControlPlane, text: str) -> None:
    """Runs the commands of kubectl in a text, one after the other; each must succeed."""
    told = [line for line in commands(text) if line.startswith("kubectl")]
    assert told
    for line in told:
        if not any(word in line for word in NO_KUBELET):
            run_one(plane, line)


def run_one(plane: ControlPlane, line: str) -> str:
    for placeholder, value in PLACEHOLDERS.items():
        line = line.replace(placeholder, value)
    words = [
        word.replace("config/", f"{ROOT}/config/", 1) if word.startswith("config/") else word
        for word in shlex.split(line)
    ]
    return plane.kubectl(*words[1:])


def exists(plane: ControlPlane, path: str) -> bool:
    try:
        plane.request("GET", path)
    except RequestError as error:
        if error.status != 404:
            raise
        return False
    return True


def parts(title: str, *, before: str) -> tuple[str, str]:
    """A section of the page, before and from this text on."""
    text = section("docs/install.md", title)
    head, mark, tail = text.partition(before)
    assert mark, before
    return head, mark + tail


def test_under_the_operator_and_back(plane: ControlPlane, operator: Operator) -> None:
    run(plane, section("docs/install.md", "The image"))
    there, back = parts("Under KAI's operator", before="**Uninstall**")
    run(plane, there)
    wait_until(lambda: operator.image() == OURS, within_s=60)
    assert exists(plane, RBAC)
    crd = plane.kubectl("get", "crd", "bindrequests.scheduling.run.ai", "-o", "yaml")
    assert "conditions:" in crd, "it keeps them"
    run(plane, there)  # after an upgrade of KAI
    run(plane, back)
    wait_until(lambda: operator.image() == KAI_IMAGE, within_s=60)
    assert not exists(plane, RBAC)


def test_migrate_there_and_back(plane: ControlPlane, operator: Operator) -> None:
    there, mark, back = page("docs/migrate.md").partition("## Back")
    assert mark
    run(plane, there)
    wait_until(lambda: operator.image() == OURS, within_s=60)
    run(plane, back)
    wait_until(lambda: operator.image() == KAI_IMAGE, within_s=60)
    assert not exists(plane, RBAC)


def test_stand_alone_and_back(plane: ControlPlane, operator: Operator) -> None:
    there, back = parts("Stand-alone", before="**Uninstall.**")
    run(plane, there)
    assert operator.image() == "kai-binder:latest", "as config/default names it, unless it is changed"
    assert exists(plane, RBAC)
    run(plane, back)
    wait_until(lambda: operator.image() == KAI_IMAGE, within_s=60)
    assert not exists(plane, RBAC)


def test_the_webhook_and_back(plane: ControlPlane, operator: Operator) -> None:
    there, back = parts("Stand-alone", before="**Uninstall.**")
    run(plane, there)
    off, on = parts("The admission webhook: KAI's or ours", before="2. Name your image")
    run(plane, off)
    theirs = f"{HOOKS}/mutatingwebhookconfigurations/kai-admission"
    wait_until(lambda: not exists(plane, theirs), within_s=60)
    for name in re.findall(r"^   \| `([\w-]+)` \|", on, re.MULTILINE):
        run_one(plane, f"kubectl apply --server-side --force-conflicts -k config/overlays/{name}")
    run(plane, on)
    ours = f"{HOOKS}/mutatingwebhookconfigurations/kai-binder-admission"
    assert not exists(plane, ours)
    for kind in (
        "deployments",
        "poddisruptionbudgets",
        "secrets",
        "roles",
        "rolebindings",
        "serviceaccounts",
        "services",
    ):
        assert "kai-binder-admission" not in plane.kubectl("-n", NAMESPACE, "get", kind, "-o", "name")
    for kind in ("clusterroles", "clusterrolebindings"):
        assert "kai-binder-admission" not in plane.kubectl("get", kind, "-o", "name")
    run(plane, back)


def test_the_memory_limit_is_turned_on(plane: ControlPlane, operator: Operator) -> None:
    run(plane, parts("Stand-alone", before="**Uninstall.**")[0])
    run(plane, section("docs/memory-limit.md", "Turn it on"))
    config = plane.request("GET", CONFIG)
    assert config["spec"]["global"] == {"gpuSharingMode": "HamiCore"}
    deployment = plane.request(
        "GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/kai-binder-admission"
    )
    assert "configMapRef" in str(deployment["spec"]["template"]["spec"]["containers"][0]["envFrom"])


def test_the_readme_says_the_same() -> None:
    own = commands(section("README.md", "Install it in a cluster"))
    assert own == commands(section("docs/install.md", "Under KAI's operator"))[: len(own)]
    assert len(own) == 3
    assert set(own) <= set(commands(section("docs/migrate.md", "There")))
