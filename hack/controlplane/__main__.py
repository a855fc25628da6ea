"""Runs a local control plane until Ctrl-C: ``PYTHONPATH=hack python -m controlplane``.

``python -m controlplane lock 1.33`` locks the newest patch of a Kubernetes minor instead, for a new minor or
a newer patch; what it writes under ``locks`` is to be committed.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from controlplane import BuildError, ControlPlane, ControlPlaneError, ensure_binaries, supported_kubernetes
from controlplane.locking import lock_kubernetes


def main(argv: Sequence[str] | None = None) -> int:
    """Builds and starts the control plane, prints how to reach it, waits, stops it.

    Args:
        argv: The arguments; those of the process when None.

    Returns:
        The exit status.
    """
    options = parse(argv)
    try:
        if options.minors:
            for minor in options.minors:
                print(f"{lock_kubernetes(minor)} is written.")
            return 0
        if options.build_only:
            for name, path in asdict(ensure_binaries(options.kubernetes)).items():
                print(f"{name:<24} {path}")
            return 0
        if options.directory is not None:
            return serve(options.directory, options.kubernetes)
        with tempfile.TemporaryDirectory(prefix="kai-binder-") as folder:
            return serve(Path(folder), options.kubernetes)
    except (BuildError, ControlPlaneError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m controlplane", description=__doc__)
    parser.set_defaults(minors=())
    lock = parser.add_subparsers(metavar="lock").add_parser("lock", help="lock a minor anew and stop")
    lock.add_argument("minors", nargs="+", metavar="MINOR", help="such as 1.33")
    minors = supported_kubernetes()
    parser.add_argument("--kubernetes", choices=minors, default=minors[0], help="the minor (%(default)s)")
    parser.add_argument("--build-only", action="store_true", help="build what is missing and stop")
    parser.add_argument(
        "--directory", type=Path, help="for logs and kubeconfigs; a temporary one when absent"
    )
    return parser.parse_args(argv)


def serve(directory: Path, kubernetes: str) -> int:
    """Runs a control plane until the process is asked to end."""
    ended = threading.Event()
    with ControlPlane(directory, kubernetes=kubernetes) as plane:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        print(f"Kubernetes {kubernetes} is ready at {plane.url}; logs are in {directory}.")
        print(f"export KUBECONFIG={plane.admin_kubeconfig}")
        print("Ctrl-C stops it.", flush=True)
        ended.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
