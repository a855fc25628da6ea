"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from controlplane import ControlPlane, supported_kubernetes
from controlplane.process import Guard

from benchmark.bench import ROOT, Bench
from benchmark.binder import Subject
from benchmark.figures import PEER, Found
from benchmark.plot import curves
from benchmark.report import GOALS, document, goals_table, read, table
from benchmark.scenarios import SCENARIOS, measure

EVERY_GOAL = "goals"
NOTE = """
A peer is another binder with the flags of KAI's, measured in turns with ours, such as
  --peer 'BINARY --kubeconfig={kubeconfig} --metrics-bind-address={metrics}
          --health-probe-bind-address={health} {flags}'
{kubeconfig} is a file, {metrics} and {health} are addresses to listen on, {flags} those of the scenario.
What is shown is the middle one of all rounds; a ratio is ours to the peer's within a round.

Absolute times depend on the machine; what counts are requests, CPU per bind, memory, and ratios of two runs
on one machine. Nothing here is a test: nothing fails because a machine is slow.
"""


def main() -> int:
    """Runs the scenarios that are named, or all; returns the exit status."""
    parser = _parser()
    arguments = parser.parse_args()
    known = {*SCENARIOS, EVERY_GOAL}
    if unknown := set(arguments.scenarios) - known:
        parser.error(
            f"there is no {', '.join(sorted(unknown))}; there are {', '.join(SCENARIOS)}, {EVERY_GOAL}"
        )
    wanted = set(arguments.scenarios or SCENARIOS)
    if EVERY_GOAL in wanted:
        wanted |= {goal.scenario for goal in GOALS}
    if arguments.show:
        found = {
            name: each
            for name, each in read(json.loads(arguments.show.read_text())).items()
            if name in wanted
        }
        print("\n".join(table(name, each) for name, each in found.items()))
    else:
        found = _measured(arguments, wanted)
    if EVERY_GOAL in wanted:
        print(goals_table(found))
    if arguments.plot and "scale" in found:
        arguments.plot.write_text(curves(found["scale"]))
    return 0


def _measured(arguments: argparse.Namespace, wanted: set[str]) -> dict[str, Found]:
    """Measures what is wanted; prints and writes each scenario as soon as it is done."""
    guard, found = Guard(), dict[str, Found]()
    with (
        tempfile.TemporaryDirectory(prefix="kai-binder-bench-") as folder,
        ControlPlane(Path(folder), kubernetes=arguments.kubernetes) as plane,
    ):
        ours = Subject(plane, Path(folder), guard, arguments.checkout.resolve(), arguments.python)
        ours.compile()
        peer = [replace(ours, name=PEER, words=tuple(shlex.split(arguments.peer)))] if arguments.peer else []
        bench = Bench(ours)
        bench.prepare()
        for name in (known for known in SCENARIOS if known in wanted):
            found[name] = measure(bench, name, (ours, *peer), arguments.rounds)
            print(table(name, found[name]), flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(document(found, arguments.kubernetes), indent=1) + "\n")
    guard.close()
    return found


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, SCENARIOS))
    lines = [f"  {name:<{width}}  {scenario.about}" for name, scenario in SCENARIOS.items()]
    lines.append(
        f"  {EVERY_GOAL:<{width}}  All that this project has set itself a goal for, and how it stands."
    )
    parser = argparse.ArgumentParser(
        prog="hack/bench",
        description="Measures the binder on a real local control plane.\n\n" + "\n".join(lines),
        epilog=NOTE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("scenarios", nargs="*", metavar="scenario", help="all if none is named")
    add("--kubernetes", default="1.36", choices=supported_kubernetes())
    add(
        "--checkout", type=Path, default=ROOT, metavar="FOLDER", help="measure the binder of another checkout"
    )
    add("--python", default=sys.executable, metavar="FILE", help="what runs our binder (default: this one)")
    add("--peer", metavar="COMMAND", help="measure another binder in turns with ours")
    add("--rounds", type=int, default=1, metavar="N", help="how often each is measured (default: once)")
    add("--json", type=Path, metavar="FILE", help="write all figures of all rounds to a file")
    add("--show", type=Path, metavar="FILE", help="measure nothing; show what such a file has")
    add("--plot", type=Path, metavar="FILE", help="draw the curves of the scenario `scale` (SVG)")
    return parser
