"""docs/memory-limit.md, from the pod as a user writes it to the limit that its container gets."""

import io
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from uuid import uuid4

import pytest
import yaml
from controlplane import ControlPlane

from controller.explain.command import main
from tests.apiserver.docs.pages import check_output, commands, page
from tests.binder import Binders, run_to_end
from tests.certificates import Mount
from tests.limits import ENABLED, Limits
from tests.sharing import Agents
from tests.webhook import Keys, Webhooks, installed

PAGE = "docs/memory-limit.md"


@pytest.fixture
def team(control_plane: ControlPlane, agents: Agents, binders: Binders) -> Limits:
    """A namespace, a node and a binder that limits memory."""
    binders.start(env=ENABLED)
    return Limits.beside(control_plane, agents)


@pytest.fixture
def webhook(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A webhook that knows of it."""
    folder = tmp_path_factory.mktemp("webhook")
    keys, mount, webhooks = Keys.make(folder), Mount(folder), Webhooks(folder)
    mount.put(keys.pair)
    try:
        made = webhooks.make("--binder-metrics-url=", mount=mount, env=ENABLED).start()
        with installed(made, control_plane, keys.authority):
            yield
        webhooks.close()
    finally:
        webhooks.kill()


def make_node(team: Limits) -> str:
    name = f"limit-{uuid4().hex[:8]}"
    whole = {"nvidia.com/gpu": "1"}
    labels = {"nvidia.com/gpu.memory": "15360", "nvidia.com/gpu.product": "Tesla-T4"}
    body = {"metadata": {"name": name, "labels": labels}, "status": {"capacity": whole, "allocatable": whole}}
    team.plane.request("POST", "/api/v1/nodes", body)
    return name


def test_a_limit_is_verified_as_the_page_says(team: Limits, webhook: None) -> None:
    node = make_node(team)
    (example,) = re.findall(r"<!-- example: train.yaml -->\n```yaml\n(.*?)```", page(PAGE), re.DOTALL)
    pod = yaml.safe_load(example)
    pod["spec"]["containers"][0]["image"] = "cuda"
    assert pod["metadata"]["namespace"] == "team"
    pod["metadata"]["namespace"] = team.namespace
    team.plane.kubectl("apply", "-f", "-", input=yaml.safe_dump(pod))
    group = team.group()
    team.ask_share("train", node, group, owner=team.get_pod("train"), portion="0.27")
    team.wait_for("train", "Succeeded", within_s=30)
    team.set_phase("train", "Running")
    device = team.device(group)

    def normal(text: str) -> str:
        for found, shown in (
            (team.namespace, "team"),
            (node, "gpu-node-7"),
            (device, "GPU-2f1c7a9e-0f55-4b0e-9d0b-52c8a7f3e9d1"),
            (group, "3f0c9a52-6d1e-4b7c-8a55-1e9d2c704b6f"),
        ):
            text = text.replace(found, shown)
        text = re.sub(r"gpu-reservation-[0-9a-f]{16}", "gpu-reservation-c70afe862a2f942f", text)
        return re.sub(r"train-\w{7}-shared-gpu", "train-vf7w9x4-shared-gpu", text)

    asked, listed = [
        team.plane.kubectl(*(team.namespace if word == "team" else word for word in words))
        for command in commands(page(PAGE))
        if "train" in command and (words := shell(command))
    ]
    check_output(PAGE, "condition", asked.strip() + "\n")
    check_output(PAGE, "variables", normal(listed))
    assert "CUDA_DEVICE_MEMORY_LIMIT=4096m" in listed
    out = io.StringIO()
    with redirect_stdout(out):
        kubeconfig = team.plane.admin_kubeconfig
        code = main(["gpus", node, f"--kubeconfig={kubeconfig}"], {"COLUMNS": "100"})
    assert code == 0
    check_output(PAGE, "gpus", normal(out.getvalue()))


def shell(command: str) -> list[str]:
    """The arguments of a kubectl command; empty if it is another one."""
    name, *words = shlex.split(command)
    return words if name == "kubectl" else []


def test_print_config_tells_of_what_is_missing() -> None:
    (command,) = (line for line in commands(page(PAGE)) if line.endswith("--print-config"))
    *settings, _, _ = command.split()
    done = run_to_end("--print-config", env=dict(setting.split("=") for setting in settings))
    assert done.returncode == 1
    told = [line for line in done.stderr.splitlines() if "DependencyNotMet" in line]
    check_output(PAGE, "dependency", "\n".join(told) + "\n")
