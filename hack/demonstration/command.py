"""The command `hack/demo`: arguments, signals, and an end in which nothing is left behind."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from containers import Containers
from controlplane import (
    BuildError,
    ControlPlane,
    ControlPlaneError,
    ensure_binaries,
    supported_kubernetes,
)
from controlplane.process import Guard
from kubelet import Kubelet

from demonstration.play import DemoError, Play, hints
from demonstration.programs import Programs
from demonstration.showing import heading, say

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ABOUT = """Shows how pods get their nodes and GPUs, on a real Kubernetes control plane of its own.

It starts etcd, kube-apiserver and kube-controller-manager as processes, applies an overlay of config/, runs
binder and webhook with the rights that we ship, and plays the scheduler by applying samples. There is no
kubelet: a bound pod stays Pending, since nobody runs it. Only for reservation pods our agent runs, and finds
a GPU that is not there. At the end all is stopped and removed, but for the built programs.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="hack/demo", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    minors = supported_kubernetes()
    parser.add_argument("--verbose", action="store_true", help="show everything, the logs too")
    parser.add_argument("--keep", action="store_true", help="leave it running to look around, until Ctrl-C")
    parser.add_argument(
        "--kubernetes", choices=minors, default=minors[0], metavar="MINOR", help=f"one of {', '.join(minors)}"
    )
    options = parser.parse_args(argv)
    for number in ENDS:
        signal.signal(number, _interrupt)
    try:
        with tempfile.TemporaryDirectory(prefix="kai-binder-demo-") as folder:
            _play(Path(folder), options)
    except (BuildError, ControlPlaneError, DemoError) as error:
        print(f"hack/demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if not options.keep:
        say("Next: hack/demo --keep, to look around, or --verbose; README.md says how to install it.")
    return 0


def _play(directory: Path, options: argparse.Namespace) -> None:
    """Runs all; with --keep, stays with all plugins on."""
    say(f"Starting a Kubernetes {options.kubernetes} control plane (some 10 s once it is built) ...")
    with (
        ControlPlane(directory, kubernetes=options.kubernetes) as plane,
        _guarding() as guard,
        _agents(plane, directory) as containers,
        Kubelet(plane, containers=containers),
    ):
        programs = Programs(directory, plane, guard)
        Play(programs, containers, verbose=options.verbose).run()
        say("\nEverything ended as it should.")
        if options.keep:
            with programs.running():
                _explore(programs, containers, options.kubernetes)


def _explore(programs: Programs, containers: Containers, kubernetes: str) -> None:
    """Says how to look around, and waits for Ctrl-C."""
    heading("Still running; in another shell")
    say(f"export KUBECONFIG={programs.plane.admin_kubeconfig}")
    if shutil.which("kubectl") is None:
        say(f'export PATH="$PATH:{ensure_binaries(kubernetes).kubectl.parent}"')
    for command, meaning in hints(programs, containers):
        say(f"{command}  # {meaning}")
    say("\nCtrl-C stops everything and removes it.")
    with suppress(KeyboardInterrupt):
        signal.pause()


@contextmanager
def _guarding() -> Iterator[Guard]:
    """Has a process that kills what we started if we die without stopping it."""
    guard = Guard()
    try:
        yield guard
    finally:
        guard.close()


@contextmanager
def _agents(plane: ControlPlane, directory: Path) -> Iterator[Containers]:
    containers = Containers(plane, directory / "containers")
    try:
        yield containers
    finally:
        containers.stop()


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    """Ends the demo in order, whatever asks for it; a second Ctrl-C must not leave half of it behind."""
    for number in ENDS:
        signal.signal(number, signal.SIG_IGN)
    say("\nStopping ...")
    raise KeyboardInterrupt
