"""The arguments, exit codes and start of `explain` and `gpus`."""

import os
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from controller.explain import command
from controller.explain.options import ArgumentsError, HelpRequested, Options, parse
from controller.explain.target import Target
from controller.explain.verbs import CannotTellError

ROOT = Path(__file__).parents[3]


def test_arguments() -> None:
    assert parse(["explain", "team/train"]) == Options(verb="explain", target="team/train")
    given = [
        "explain",
        "train",
        "-n",
        "team",
        "-o",
        "json",
        "--kubeconfig",
        "k",
        "--context",
        "c",
        "--timeout",
        "3",
    ]
    assert parse(given) == Options(
        verb="explain",
        target="train",
        namespace="team",
        output="json",
        kubeconfig="k",
        context="c",
        timeout_s=3.0,
    )
    assert parse(["gpus"]) == Options(verb="gpus")
    assert parse(["gpus", "gpu-1", "-w"]) == Options(verb="gpus", target="gpu-1", watch=True)


@pytest.mark.parametrize(
    "argv",
    [
        ["explain"],
        ["explain", "a", "b"],
        ["x"],
        ["explain", "a", "-o", "yaml"],
        ["explain", "a", "--timeout=0"],
        ["explain", "a", "--timeout=nan"],
        ["gpus", "--timeout=inf"],
    ],
)
def test_arguments_that_make_no_sense(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ArgumentsError):
        parse(argv)
    assert command.main(argv, {}) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("kai-binder: ")
    assert err.count("\n") == 1


def test_an_argument_smuggles_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["explain", "x", "-o", "\x1b[2J"], {}) == 2
    assert command.main(["explain", "\x1b[2J"], {}) == 2
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["--help"], ["explain", "--help"], ["gpus", "-h"]])
def test_help(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(HelpRequested):
        parse(argv)
    assert command.main(argv, {}, "kubectl binder") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("usage: kubectl binder")
    if argv == ["explain", "--help"]:
        assert "exit codes: 0 bound, 1 not (yet) bound, 2 cannot tell" in out
        assert "kubectl binder explain team/train" in out


def test_help_costs_next_to_nothing() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command_line = [sys.executable, "-m", "controller", "explain", "--help"]
    subprocess.run(command_line, cwd=ROOT, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3


def test_it_is_a_plugin_of_kubectl(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["kubectl-binder"] == "controller.explain.command:plugin"
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/kubectl-binder", "explain", "--help"])
    assert command.plugin() == 0
    assert capsys.readouterr().out.startswith("usage: kubectl binder explain")


@pytest.mark.parametrize(
    ("text", "namespace", "target"),
    [
        ("train", "", Target("", "", "train")),
        ("train", "team", Target("", "team", "train")),
        ("team/train", "", Target("", "team", "train")),
        ("pod/train", "", Target("pod", "", "train")),
        ("br/train", "team", Target("request", "team", "train")),
        ("bindrequest/a.b", "", Target("request", "", "a.b")),
        ("team/pod/train", "", Target("pod", "team", "train")),
        ("team/pod", "team", Target("", "team", "pod")),
    ],
)
def test_targets(text: str, namespace: str, target: Target) -> None:
    assert Target.parse(text, namespace) == target


@pytest.mark.parametrize(
    ("text", "namespace"),
    [("", ""), ("a/b/c", ""), ("A", ""), ("../x", ""), ("a/", ""), ("x" * 254, ""), ("a", "B"), ("a/b", "c")],
)
def test_targets_that_are_none(text: str, namespace: str) -> None:
    with pytest.raises(CannotTellError):
        Target.parse(text, namespace)


def test_a_reader_that_goes_away() -> None:
    code = (
        "import os, sys; from controller.explain import command; os.close(0);"
        "sys.exit(command.main(['explain', '--help'], os.environ))"
    )
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert done.stderr == b""
