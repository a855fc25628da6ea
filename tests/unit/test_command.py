"""The command before and around its work: signals, images, an end that nobody foresaw."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from controller import app
from controller.__main__ import RESERVATION_POD, main
from controller.planning import plan
from controller.reservation.image import CONTAINER
from controller.reservation.manifest import NAME_PREFIX
from controller.settings import load

ROOT = Path(__file__).parents[2]
IMAGE = "--resource-reservation-pod-image"
AGENT = f"{IMAGE}=registry.example.com/team/agent:v1"
SLOW = """
import pathlib, time
pathlib.Path({started!r}).touch()
time.sleep(60)
"""
ENTRY = [sys.executable, "-c", "import sys; from controller.__main__ import main; sys.exit(main())"]
FIRST_PROCESS = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As outside of a pod, wherever the tests run."""
    for name in [name for name in os.environ if name.startswith(("BINDER_", "POD_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(app, "_OWN_NAMESPACE", tmp_path / "no-namespace")


def deployment(path: str) -> dict[str, object]:
    """The only container of a Deployment."""
    (container,) = yaml.safe_load((ROOT / path).read_text())["spec"]["template"]["spec"]["containers"]
    return dict(container)


def importing(tmp_path: Path, command: list[str]) -> "subprocess.Popen[bytes]":
    """The command, in the middle of its imports for as long as the test takes."""
    started = tmp_path / "started"
    (tmp_path / "pydantic.py").write_text(SLOW.format(started=str(started)))
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})
    deadline_s = time.monotonic() + 20
    while not started.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_imports_ends_the_process(tmp_path: Path, number: signal.Signals) -> None:
    """F-55."""
    process = importing(tmp_path, ENTRY)
    process.send_signal(number)
    assert process.wait(5) == 0


def test_it_ends_the_first_process_of_a_container_too(tmp_path: Path) -> None:
    """F-55: the kernel gives such a process no signal that it has not asked for."""
    if (
        shutil.which("unshare") is None
        or subprocess.run([*FIRST_PROCESS, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("this machine makes no process namespaces")
    outer = importing(tmp_path, [*FIRST_PROCESS, *ENTRY])
    try:
        (inner,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        os.kill(int(inner), signal.SIGTERM)
        assert outer.wait(5) == 0
    finally:
        outer.kill()


def test_an_end_that_nobody_foresaw_is_one_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """F-55: in the chosen format, not a bare trace that no collector of logs can read."""

    async def broken(*_: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(app, "run", broken)
    assert main(["--log-format=json", AGENT]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert (record["level"], record["error"]) == ("error", "RuntimeError: a fault")
    assert "in broken" in record["stacktrace"]


@pytest.mark.parametrize(
    "image",
    [
        "registry/local/kai-scheduler/resource-reservation",
        "/resource-reservation:",
        "agent:",
        "Agent",
        "a//b",
    ],
)
def test_an_image_that_cannot_be_pulled_is_a_problem(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    """F-29: told by --print-config."""
    assert main(["--print-config", IMAGE, image]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"kai-binder: {IMAGE}: {image!r} is ")
    assert "gpusharing" in told


def test_the_default_image_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    """F-29."""
    assert main(["--print-config"]) == 1
    assert "is a placeholder" in capsys.readouterr().err


def test_shares_by_annotations_need_the_image_too(capsys: pytest.CaptureFixture[str]) -> None:
    """F-29: in KAI's mode NvFractions GPUs are reserved just the same."""
    plugins = '{"gpusharing":{"enabled":false},"nvfractions":{"enabled":true}}'
    assert main(["--print-config", "--plugins", plugins]) == 1
    told = capsys.readouterr().err
    assert "is a placeholder" in told
    assert told.endswith("turn nvfractions off\n")
    assert main(["--print-config", "--plugins", plugins, AGENT]) == 0


@pytest.mark.parametrize(
    "flags",
    [
        [AGENT],
        [f"{IMAGE}=agent"],
        [f"{IMAGE}=localhost:5000/agent"],
        [f"{IMAGE}=[::1]:5000/team/my-agent:v1.2_3"],
        [f"{IMAGE}=registry.example.com/agent:v1@sha256:{'0a' * 32}"],
        ['--plugins={"gpusharing":{"enabled":false}}'],
    ],
    ids=str,
)
def test_without_a_problem_nothing_is_told(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """F-29."""
    assert main(["--print-config", *flags]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("pod", "flags", "code", "outlook"),
    [
        ("b", [], 0, "the image of the binder's own pod n/b, with the argument agent"),
        ("b", [AGENT], 0, "the image that is set, with the argument agent if pod n/b runs one of that name"),
        ("", [AGENT], 0, "the image that is set, without an argument"),
        ("", [], 1, "the placeholder, without an argument"),
        ("b", ['--plugins={"gpusharing":{"enabled":false}}'], 0, None),
    ],
)
def test_what_reservation_pods_run_is_told_as_far_as_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pod: str,
    flags: list[str],
    code: int,
    outlook: str | None,
) -> None:
    """In a pod the image in effect is not the one that the settings show."""
    if pod:
        monkeypatch.setenv("POD_NAME", pod)
        monkeypatch.setenv("POD_NAMESPACE", "n")
    assert main(["--print-config", *flags]) == code
    assert yaml.safe_load(capsys.readouterr().out).get("reservation-pods-run") == outlook


def test_a_placeholder_is_told_at_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """F-29."""
    addresses = ["--metrics-bind-address=0", "--health-probe-bind-address=0"]
    assert main([f"--kubeconfig={tmp_path}/none", "--log-format=json", *addresses]) == 1
    records = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [record["level"] for record in records if "GPUs cannot be shared" in record["msg"]] == ["error"]


def test_the_shipped_deployment_can_share_gpus(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-29: it knows its own pod, whose image the reservation pods run."""
    container = deployment("config/manager/deployment.yaml")
    args, env = container["args"], container["env"]
    assert isinstance(args, list)
    assert isinstance(env, list)
    assert IMAGE not in str(args)
    assert container["name"] == CONTAINER
    fields = {item["name"]: item["valueFrom"]["fieldRef"]["fieldPath"] for item in env}
    assert fields == {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}
    for name in fields:
        monkeypatch.setenv(name, "of-the-pod")
    assert main(["--print-config", *args]) == 0
    assert capsys.readouterr().err == ""
    assert main(["--print-config", *args, f"{IMAGE}=/resource-reservation:"]) == 1


def test_the_arguments_of_the_operator_are_accepted() -> None:
    """F-65: exactly as it writes them."""
    args = deployment("tests/data/operator-binder-deployment.yaml")["args"]
    assert isinstance(args, list)
    settings = load(args, {})
    assert (settings.qps, settings.burst, settings.leader_elect) == (20, 100, True)
    assert settings.resource_reservation_pod_image == "/resource-reservation:"
    assert (settings.metrics_bind_address, settings.health_probe_bind_address) == (":8080", ":8081")
    security = settings.resource_reservation_container_security_context
    assert security is not None
    assert (security["runAsUser"], security["capabilities"]) == (10000, {"drop": ["all"]})
    names = [planned.cls.name for planned in plan(settings)]
    assert names == ["volumebinding", "dynamicresources", "gpusharing"]


@pytest.mark.parametrize("word", ["serve", "Run", "", "false"])
def test_a_verb_that_there_is_not_is_told_with_those_there_are(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word, "--print-config"]) == 2
    told = f"kai-binder: {word!r} is no verb; there are run, admission, agent, explain, gpus\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("verb", ["explain", "gpus"])
def test_the_verbs_that_tell_are_verbs_of_the_command(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    assert f"kai-binder {verb} " in capsys.readouterr().out
    assert main([verb, "--output=xml"]) == 2
    assert "'xml'" in capsys.readouterr().err


def test_run_need_not_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for words in ([], ["run"]):
        assert main([*words, "--print-config", "--scheduler-name=mine", AGENT]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert "scheduler-name: mine\n" in shown[0]


def ended(*words: str, pod: str) -> str:
    """What the command says in a pod of this name, with a setting that only an agent does not look at."""
    env = {**os.environ, "POD_NAME": pod, "POD_NAMESPACE": "n", "BINDER_LOG_LEVEL": "loud"}
    command = [sys.executable, "-m", "controller", *words]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == (1 if "kai-binder agent: " in done.stderr else 2), done.stderr
    return done.stderr


def test_without_a_verb_it_is_the_agent_in_a_reservation_pod() -> None:
    """Whatever name its image goes by there: a binder could do nothing under that account."""
    told = ended(pod="gpu-reservation-617c4451a7a8a54c").splitlines()
    assert told[0] == (
        "kai-binder: no verb is said, and gpu-reservation-617c4451a7a8a54c is the name of a reservation pod: "
        "this is the agent"
    )
    assert [line.split(":")[0] for line in told[1:]] == ["kai-binder agent"]
    assert NAME_PREFIX == RESERVATION_POD


@pytest.mark.parametrize(
    ("words", "pod"),
    [
        ([], "kai-binder-7d9c-gpu-reservation-0"),
        ([], "gpu-reservation"),
        ([], ""),
        (["run"], "gpu-reservation-617c4451a7a8a54c"),
        (["--burst=1"], "gpu-reservation-617c4451a7a8a54c"),
        (["admission"], "gpu-reservation-617c4451a7a8a54c"),
    ],
)
def test_elsewhere_or_with_a_word_it_is_what_it_always_was(words: list[str], pod: str) -> None:
    assert ended(*words, pod=pod).startswith("kai-binder: BINDER_LOG_LEVEL: ")


@pytest.mark.parametrize("verb", ["run", "admission"])
def test_each_verb_has_its_help_and_all_have_one_version(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"kai-binder {verb}: ")
    assert main([verb, "--version"]) == 0
    assert capsys.readouterr().out.startswith("kai-binder 0.")


def test_until_the_verb_is_known_nothing_large_is_imported() -> None:
    """The agent has to stay small."""
    code = "import sys; import controller.__main__; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, check=True)
    imported = set(done.stdout.decode().split())
    assert "controller.__main__" in imported
    assert imported.isdisjoint(
        {"asyncio", "json", "pydantic", "ssl", "controller.command", "controller.settings"}
    )
