"""What the command says of the limit's settings, before it talks to any server."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import yaml

from controller.__main__ import main
from controller.runtime.client import Object
from tests.binder import run_to_end
from tests.limits import ENABLED

IMAGE = {"BINDER_RESOURCE_RESERVATION_POD_IMAGE": "registry.example.com/agent:1"}
ARGUMENTS = "BINDER_PLUGINS__GPUMEMORYLIMIT__ARGUMENTS"


@dataclass(frozen=True, slots=True)
class Done:
    """How the command ended."""

    returncode: int
    stdout: str
    stderr: str


class Command:
    """Runs the command in this process, which is quicker."""

    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self._patch = patch
        self._capture = capture

    def __call__(self, *flags: str, env: Mapping[str, str] | None = None) -> Done:
        with self._patch.context() as patch:
            for name in [name for name in os.environ if name.startswith("BINDER_")]:
                patch.delenv(name)
            for name, value in {**IMAGE, **(env or {})}.items():
                patch.setenv(name, value)
            code = main(flags)
        written = self._capture.readouterr()
        return Done(code, written.out, written.err)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


def printed(output: str) -> dict[str, Object]:
    """The plugins of a printed configuration by name, in their order."""
    parsed = yaml.safe_load(output)
    return {item["name"]: item for item in parsed["plugin-order"]}


def test_the_process_ends_with_1_and_2() -> None:
    unmet = run_to_end(
        "--print-config", env={**IMAGE, **ENABLED, "BINDER_PLUGINS__GPUSHARING__ENABLED": "false"}
    )
    wrong = run_to_end(env={**ENABLED, ARGUMENTS: '{"fallbackMemoryMiB":"16Gi"}'})
    assert (unmet.returncode, wrong.returncode) == (1, 2)
    assert unmet.stderr.startswith("kai-binder: DependencyNotMet: gpumemorylimit needs gpusharing")
    assert wrong.stderr.startswith("kai-binder: plugins: gpumemorylimit: argument 'fallbackMemoryMiB'")
    assert len((unmet.stderr + wrong.stderr).splitlines()) == 2


def test_print_config_without_the_limit(command: Command) -> None:
    done = command("--print-config")
    assert done.returncode == 0
    assert list(printed(done.stdout)) == ["volumebinding", "dynamicresources", "gpusharing"]


def test_print_config_with_the_limit(command: Command) -> None:
    done = command("--print-config", env=ENABLED)
    assert (done.returncode, done.stderr) == (0, "")
    plugins = printed(done.stdout)
    assert list(plugins) == ["volumebinding", "dynamicresources", "gpusharing", "gpumemorylimit"]
    assert plugins["gpumemorylimit"] == {
        "name": "gpumemorylimit",
        "priority": 50,
        "failurePolicy": "Fail",
        "fallbackMemoryMiB": None,
        "variable": "CUDA_DEVICE_MEMORY_LIMIT",
        "format": "mebibytes",
    }
    assert plugins["gpusharing"]["cdiEnabled"] is False


def test_print_config_with_the_limit_under_its_other_name(command: Command) -> None:
    done = command("--print-config", env={"BINDER_PLUGINS__HAMICORE__ENABLED": "true"})
    assert done.returncode == 0
    assert list(printed(done.stdout))[-2:] == ["gpusharing", "gpumemorylimit"]


def test_print_config_shows_the_arguments(command: Command) -> None:
    arguments = {"fallbackMemoryMiB": "124610", "variable": "GPU_MEMORY_LIMIT", "format": "bytes"}
    done = command("--print-config", env={**ENABLED, ARGUMENTS: json.dumps(arguments)})
    found = printed(done.stdout)["gpumemorylimit"]
    assert {name: str(found[name]) for name in arguments} == arguments


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (
            {"BINDER_PLUGINS__GPUSHARING__ENABLED": "false"},
            ["which is disabled", "set BINDER_PLUGINS__GPUSHARING__ENABLED=true"],
        ),
        (
            {"BINDER_PLUGINS__GPUMEMORYLIMIT__PRIORITY": "150"},
            ["gpusharing runs after it", "BINDER_PLUGINS__GPUSHARING__PRIORITY"],
        ),
        (
            {"BINDER_PLUGINS__GPUSHARING__PRIORITY": "50"},  # a tie goes by name, against gpusharing
            ["gpusharing runs after it", "BINDER_PLUGINS__GPUSHARING__PRIORITY"],
        ),
    ],
    ids=["disabled", "ordered after it", "the same priority"],
)
def test_print_config_ends_with_1_if_the_need_is_not_met(
    command: Command, env: Mapping[str, str], words: list[str]
) -> None:
    done = command("--print-config", env={**ENABLED, **env})
    assert done.returncode == 1
    assert done.stderr.startswith("kai-binder: DependencyNotMet: gpumemorylimit needs gpusharing")
    assert len(done.stderr.splitlines()) == 1
    assert [word for word in words if word not in done.stderr] == []
    # The whole is printed all the same, and names it where it belongs.
    unmet = printed(done.stdout)["gpumemorylimit"]["dependencyNotMet"]
    assert done.stderr == f"kai-binder: DependencyNotMet: {unmet}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"fallbackMemoryMiB": "16Gi"}, ["fallbackMemoryMiB", "'16Gi'", "whole number of MiB"]),
        ({"fallbackMemoryMiB": "17179869184"}, ["fallbackMemoryMiB", "'17179869184'", "to 1048575"]),
        ({"fallbackMemoryMiB": 15360}, ["fallbackMemoryMiB", "15360", "string"]),
        ({"fallbackMemory": "15360"}, ["'fallbackMemory'", "unknown", "fallbackMemoryMiB"]),
        ({"variable": "A-B"}, ["variable", "'A-B'"]),
        ({"variable": "NVIDIA_VISIBLE_DEVICES"}, ["variable", "gpusharing sets it"]),
        ({"format": "MiB"}, ["format", "'MiB'", "mebibytes", "bytes"]),
    ],
    ids=str,
)
def test_wrong_arguments_end_with_2(command: Command, arguments: object, words: list[str]) -> None:
    done = command(env={**ENABLED, ARGUMENTS: json.dumps(arguments)})
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert [word for word in ["kai-binder: ", "gpumemorylimit", *words] if word not in line] == [], line


@pytest.mark.parametrize("flag", ["hamicore", "gpumemorylimit"])
def test_the_two_names_at_once_end_with_2(command: Command, flag: str) -> None:
    other = {"hamicore": "GPUMEMORYLIMIT", "gpumemorylimit": "HAMICORE"}[flag]
    plugins = json.dumps({flag: {"enabled": False}})
    done = command(f"--plugins={plugins}", env={f"BINDER_PLUGINS__{other}__ENABLED": "true"})
    assert done.returncode == 2
    assert "'gpumemorylimit' and 'hamicore' are names of one plugin; keep one of them" in done.stderr


@pytest.mark.parametrize(
    "variable",
    ["BINDER_PLUGINS__GPUMEMORYLIMT__ENABLED", "BINDER_PLUGIN__GPUMEMORYLIMIT__ENABLED"],
)
def test_a_typing_error_never_leaves_the_limit_off_in_silence(command: Command, variable: str) -> None:
    done = command(env={variable: "true"})
    assert done.returncode == 2
    assert "gpumemorylimit" in done.stderr.lower()
