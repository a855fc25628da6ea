"""What the command says when it cannot start, and with which exit code."""

import subprocess
from pathlib import Path

import pytest

from tests.binder import run_to_end


def complaints(done: "subprocess.CompletedProcess[str]", code: int) -> str:
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert all(line.startswith("kai-binder: ") for line in done.stderr.splitlines())
    return done.stderr


@pytest.mark.parametrize(
    ("flags", "env", "words"),
    [
        (["--plugins={"], {}, ["--plugins", "JSON"]),
        ([], {"BINDER_PLUGINS": "[1]"}, ["BINDER_PLUGINS", "[1]"]),
        ([], {"BINDER_PLUGINS__GPUSHRAING__ENABLED": "true"}, ["gpushraing", "gpusharing"]),
        (
            [],
            {"BINDER_PLUGINS__GPUSHARING__ARGUMENTS": '{"cdi":"true"}'},
            ["gpusharing", "'cdi'", "unknown", "cdiEnabled"],
        ),
        (
            ['--plugins={"hamicore":{"enabled":true,"arguments":{"fallbackMemory":"1"}}}'],
            {},
            ["gpumemorylimit", "'fallbackMemory'", "unknown", "fallbackMemoryMiB"],
        ),
        (
            ['--plugins={"volumebinding":{"arguments":{"bindTimeoutSeconds":"-1"}}}'],
            {},
            ["volumebinding", "bindTimeoutSeconds", "-1"],
        ),
        (['--plugins={"gpusharing":{"failurePolicy":"Maybe"}}'], {}, ["gpusharing", "Maybe", "Ignore"]),
        ([], {"BINDER_QSP": "1"}, ["BINDER_QSP", "BINDER_QPS"]),
        ([], {"BINDER_QPS": "fast"}, ["BINDER_QPS", "fast"]),
        (["--log-lvel=debug"], {}, ["--log-lvel", "--log-level"]),
        (["--leader-elect"], {}, ["--leader-elect", "--leader-election-namespace"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_settings_end_with_2_and_are_named(
    flags: list[str], env: dict[str, str], words: list[str]
) -> None:
    text = complaints(run_to_end(*flags, env=env), 2)
    assert [word for word in words if word not in text] == [], text


def test_all_problems_are_told_at_once() -> None:
    text = complaints(run_to_end("--qps=fast", "--burst=0", env={"BINDER_NO": "1"}), 2)
    assert [word for word in ("--qps", "--burst", "BINDER_NO") if word not in text] == []


def test_print_config_shows_the_order_of_the_plugins() -> None:
    image = "--resource-reservation-pod-image=registry.example.com/agent:1"
    done = run_to_end("--print-config", image, env={"BINDER_PLUGINS__GPUMEMORYLIMIT__ENABLED": "true"})
    assert complaints(done, 0) == ""
    names = [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("- name:")]
    assert names == ["volumebinding", "dynamicresources", "gpusharing", "gpumemorylimit"]


def test_print_config_ends_with_1_if_needs_are_not_met() -> None:
    done = run_to_end(
        "--print-config", '--plugins={"gpumemorylimit":{"enabled":true},"gpusharing":{"enabled":false}}'
    )
    assert "DependencyNotMet: gpumemorylimit needs gpusharing" in complaints(done, 1)


def test_a_kubeconfig_that_is_not_there(tmp_path: Path) -> None:
    done = run_to_end(f"--kubeconfig={tmp_path}/no-such-file")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"kubeconfig {tmp_path}/no-such-file does not exist" in done.stderr
