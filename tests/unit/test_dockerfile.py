"""What can be said of the image without a container engine."""

import json
import re

import pytest

from tests.unit.dockerfile import ROOT, STAGES, Instruction, of


def test_there_is_a_stage_to_build_and_a_stage_to_run() -> None:
    assert len(STAGES) == 2


@pytest.mark.parametrize("stage", STAGES)
def test_base_images_name_a_python_version(stage: list[Instruction]) -> None:
    (base,) = of(stage, "FROM")
    assert re.match(r"python:3\.\d+(\.\d+)?-slim", base), base


def test_both_stages_use_the_same_image() -> None:
    build, final = (of(stage, "FROM")[0].split()[0] for stage in STAGES)
    assert build == final


def test_dependencies_come_from_the_lock_and_are_checked_by_hash() -> None:
    installs = [run for run in of(STAGES[0], "RUN") if "pip install" in run]
    locked = [run for run in installs if "--requirement requirements.lock" in run]
    assert len(locked) == 1
    assert "--require-hashes" in locked[0]
    for other in set(installs) - set(locked):
        assert "--no-deps" in other, f"this would fetch unlocked dependencies: {other}"


def test_the_bytecode_is_that_of_the_base_image_and_is_used() -> None:
    """F-64."""
    version = re.match(r"python:(3\.\d+)", of(STAGES[0], "FROM")[0])
    (compiling,) = (run for run in of(STAGES[0], "RUN") if "-m compileall" in run)
    assert version is not None
    assert f"/usr/local/lib/python{version[1]} /opt/kai-binder/lib" in compiling
    (prefix,) = re.findall(r"^env PYTHONPYCACHEPREFIX=(\S+) ", compiling)
    assert f"PYTHONPYCACHEPREFIX={prefix} " in of(STAGES[1], "ENV")[0]
    for run in of(STAGES[0], "RUN"):
        assert "pip install" not in run or "--no-compile" in run, "what pip compiles nobody would read"


def test_no_cache_of_pip_is_left() -> None:
    for run in of(STAGES[0], "RUN"):
        assert "pip install" not in run or "--no-cache-dir" in run


def test_the_final_stage_holds_the_virtual_environment_and_nothing_else() -> None:
    assert of(STAGES[1], "COPY") == ["--from=build /opt/kai-binder /opt/kai-binder"]
    assert not of(STAGES[1], "RUN")
    assert not of(STAGES[1], "ADD")


def test_the_process_is_not_root() -> None:
    # A number: runAsNonRoot cannot check a name.
    assert of(STAGES[1], "USER") == ["10000:10000"]


def test_the_command_is_the_binder_itself() -> None:
    # No shell in between, or it would swallow SIGTERM.
    (entrypoint,) = of(STAGES[1], "ENTRYPOINT")
    assert json.loads(entrypoint) == ["kai-binder"]
    assert 'kai-binder = "controller.__main__:main"' in (ROOT / "pyproject.toml").read_text()


def test_no_gpu_but_what_the_device_plugin_gives() -> None:
    (environment,) = of(STAGES[1], "ENV")
    assert " NVIDIA_VISIBLE_DEVICES=void " in environment
    assert " NVIDIA_DRIVER_CAPABILITIES=utility " in environment


def test_the_build_context_holds_what_is_copied_and_nothing_else() -> None:
    ignore = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    allowed = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    copied = {source for copy in of(STAGES[0], "COPY") for source in copy.split()[:-1]}
    assert ignore[0] == "*"
    assert copied == allowed


def test_the_image_runs_the_user_that_the_deployment_asks_for() -> None:
    deployment = (ROOT / "config" / "manager" / "deployment.yaml").read_text()
    assert "runAsUser: 10000" in deployment
