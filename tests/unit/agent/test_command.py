"""The agent as a command: what it prints, how it ends where there is no API server, what it imports."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import grimp
import pytest
from controlplane.pki import write_keys

from controller.agent.command import write_end
from tests.agent import ONE_GPU, Agent, clean_environment

ROOT = Path(__file__).parents[3]
POD = {"POD_NAMESPACE": "reservations", "POD_NAME": "r"}
FIRST_PROCESS = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
NOWHERE = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The agent as it is shipped, to its end."""
    command = [sys.executable, "-m", "controller", "agent", *arguments]
    environment = {**clean_environment(), **environ}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_help() -> None:
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "run.ai/reserve_for_gpu_index" in done.stdout


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("kai-binder ")
    assert "v0.18" in done.stdout


@pytest.mark.parametrize("arguments", [["--verbose"], ["x", "y"], [""]])
def test_what_it_does_not_know(arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("kai-binder agent: it knows --help and --version only, not ")


def test_outside_of_a_pod() -> None:
    done = run()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("kai-binder agent: KUBERNETES_SERVICE_HOST is ''")
    assert len(done.stderr.splitlines()) == 1


def test_without_its_names() -> None:
    done = run(**NOWHERE)
    assert done.returncode == 1
    assert "POD_NAMESPACE is '', but must name the pod" in done.stderr


def test_without_a_service_account(tmp_path: Path) -> None:
    agent = Agent(tmp_path, {**NOWHERE, **POD}, ONE_GPU).start()
    assert "serviceaccount/token cannot be read (No such file or directory)" in agent.refusal()


@pytest.mark.parametrize(("token", "words"), [("\n", "token holds no token"), ("a\nb", "holds no token")])
def test_no_token_in_the_file(tmp_path: Path, token: str, words: str) -> None:
    agent = Agent(tmp_path, {**NOWHERE, **POD}, ONE_GPU)
    (agent.account / "token").write_text(token)
    assert words in agent.start().refusal()


def test_no_certificate_in_the_file(tmp_path: Path) -> None:
    agent = Agent(tmp_path, {**NOWHERE, **POD}, ONE_GPU)
    (agent.account / "token").write_text("secret-token")
    (agent.account / "ca.crt").write_text("nothing")
    assert "ca.crt holds no certificate" in agent.start().refusal()
    assert "secret-token" not in agent.log


def test_a_certificate_that_cannot_be_read(tmp_path: Path) -> None:
    agent = Agent(tmp_path, {**NOWHERE, **POD}, ONE_GPU)
    (agent.account / "token").write_text("t")
    assert "ca.crt cannot be read (No such file or directory)" in agent.start().refusal()


def test_a_fault_of_its_own_is_told_too(tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    log.touch()
    code = (
        "import sys; from pathlib import Path; from controller.agent import command\n"
        "def broken(*_): raise RuntimeError('a\\nfault')\n"
        "command._report = broken\n"
        f"sys.exit(command.main([], {{}}, termination_log=Path({str(log)!r})))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1] == "kai-binder agent: a fault of its own: RuntimeError: a fault"
    assert log.read_text().startswith("a fault of its own: RuntimeError")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_the_first_process_of_a_container(tmp_path: Path, number: signal.Signals) -> None:
    """To it a signal does nothing by itself."""
    if (
        shutil.which("unshare") is None
        or subprocess.run([*FIRST_PROCESS, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("this machine makes no process namespaces")
    agent = Agent(tmp_path, {**NOWHERE, **POD}, ONE_GPU)
    (agent.account / "token").write_text("t")
    (agent.account / "ca.crt").write_bytes(write_keys(tmp_path / "pki").ca.read_bytes())
    try:
        agent.start(FIRST_PROCESS).wait_for("does not answer, it is tried on")
        (first,) = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
        os.kill(int(first), number)
        assert agent.end(5) == 0
    finally:
        agent.kill()


@pytest.mark.parametrize("executable", ["", None, "/no/such/python"])
def test_without_an_interpreter_that_it_knows_it_waits_by_itself(executable: str | None) -> None:
    """An end here would be a crash loop, with the GPU named already."""
    code = (
        "import sys; from controller.agent import command\n"
        "command._report = lambda *_: None\n"
        f"sys.executable = {executable!r}\n"
        "sys.exit(command.main([], {}))"
    )
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(
        command, cwd=ROOT, env=clean_environment(), stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    try:
        assert process.stderr is not None
        assert b"it holds the GPU" in process.stderr.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.terminate()
        assert process.communicate(timeout=10)[1] == b""
        assert process.returncode == 0
    finally:
        process.kill()


@pytest.mark.parametrize("text", ["é" * 3000, "a" + "é" * 3000, "short", ""])
def test_the_termination_log_is_never_too_long_nor_cut_within_a_character(tmp_path: Path, text: str) -> None:
    path = tmp_path / "termination-log"
    path.write_text("what a former container has left" * 300)
    write_end(path, text)
    written = path.read_bytes()
    assert len(written) <= 4096
    assert text.startswith(written.decode())
    assert len(written) >= min(len(text.encode()), 4095)


def test_without_a_termination_log_none_is_made(tmp_path: Path) -> None:
    write_end(tmp_path / "termination-log", "text")
    assert list(tmp_path.iterdir()) == []
    write_end(tmp_path, "a directory")


def test_no_import_of_ours_but_its_own() -> None:
    """Each would cost memory on every node."""
    graph = grimp.build_graph("controller", include_external_packages=True, cache_dir=None)
    modules = {"controller.agent", *graph.find_descendants("controller.agent")}
    imported = {other for module in modules for other in graph.find_modules_directly_imported_by(module)}
    outside = {name for name in imported - modules if name.partition(".")[0] not in sys.stdlib_module_names}
    assert outside == {"controller", "pynvml"}


def test_what_is_loaded_while_it_works() -> None:
    """Whoever imports it, such as another version of Python's own modules."""
    code = (
        "import json, sys; import controller.agent.command; before = set(sys.modules);"
        "from controller.agent.device import DeviceError, discover\n"
        "try: discover({})\n"
        "except DeviceError: pass\n"
        "print(json.dumps([sorted(before), sorted(sys.modules)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    before, after = json.loads(done.stdout)
    assert "pynvml" in after
    assert "pynvml" not in before, "it is loaded when it is needed"
    heavy = {
        "aiohttp",
        "anyio",
        "asyncio",
        "argparse",
        "kr8s",
        "logging",
        "loguru",
        "orjson",
        "pydantic",
        "yaml",
    }
    assert heavy.isdisjoint(after)
    ours = [
        name for name in after if name.startswith("controller.") and not name.startswith("controller.agent")
    ]
    assert ours == []
