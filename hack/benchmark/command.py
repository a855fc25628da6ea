"""The command line of the benchmarks."""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

from controlplane import ControlPlane, supported_kubernetes
from controlplane.process import Guard

from benchmark import admission, binding, storage
from benchmark.bench import ROOT, Bench
from benchmark.binder import Subject

SCENARIOS: dict[str, Callable[[Bench], None]] = {
    "quota": binding.start_under_quota,
    "burst": binding.burst,
    "shared": binding.shared,
    "limited": binding.limited,
    "latency": binding.latency,
    "admission": admission.admission,
    "claims": storage.claims,
    "waiting": storage.waiting,
    "waits": storage.waits,
    "volumes": storage.volumes,
    "scale": storage.scale,
}
"""In the order of running: those that leave much behind come last."""

NOTE = """
Absolute times depend on the machine; what counts are requests, CPU per bind, memory, and ratios of two runs
on one machine. Nothing here is a test: nothing fails because a machine is slow.
"""


def main() -> int:
    """Runs the scenarios that are named, or all; returns the exit status."""
    width = max(map(len, SCENARIOS))
    lines = [f"  {name:<{width}}  {(run.__doc__ or '').splitlines()[0]}" for name, run in SCENARIOS.items()]
    parser = argparse.ArgumentParser(
        prog="hack/bench",
        description="Measures the binder on a real local control plane.\n\n" + "\n".join(lines),
        epilog=NOTE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenarios", nargs="*", metavar="scenario", help="all if none is named")
    parser.add_argument("--kubernetes", default="1.36", choices=supported_kubernetes())
    parser.add_argument(
        "--checkout", type=Path, default=ROOT, metavar="FOLDER", help="measure the binder of another checkout"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.scenarios) - set(SCENARIOS):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(SCENARIOS)}")
    wanted = arguments.scenarios or SCENARIOS
    guard = Guard()
    with (
        tempfile.TemporaryDirectory(prefix="kai-binder-bench-") as folder,
        ControlPlane(Path(folder), kubernetes=arguments.kubernetes) as plane,
    ):
        bench = Bench(Subject(plane, Path(folder), guard, arguments.checkout.resolve()))
        bench.prepare()
        for name, run in SCENARIOS.items():
            if name in wanted:
                run(bench)
    guard.close()
    return 0
