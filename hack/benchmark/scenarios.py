"""All that can be measured, by name, and how a scenario is run: in rounds, program by program.

Used by the command. Invariant: within a round the programs take turns on the same control plane, and each
finds the same cluster; which goes first changes with each round.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from controlplane import ControlPlaneError

from benchmark import admission, binding, growth, looking, storage, swapping
from benchmark.bench import Bench
from benchmark.binder import Subject, UnfinishedError
from benchmark.figures import Figure, Found

Measure = Callable[[Bench], list[Figure]]
Prepare = Callable[[Bench], None]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One thing to measure.

    Attributes:
        stages: For each state of the cluster, what brings it there, once, and what is measured in it.
        has_peer: Whether a peer can be measured, too.
        title: For people; empty: the docstring of the measurement.
    """

    stages: Sequence[tuple[Prepare, Measure]]
    has_peer: bool = True
    title: str = ""

    @property
    def about(self) -> str:
        """What is measured, in one line."""
        return (self.title or self.stages[0][1].__doc__ or "").splitlines()[0]


def _nothing(_bench: Bench) -> None:
    """The cluster is as it should be."""


def _one(measure: Measure, prepare: Prepare = _nothing, *, has_peer: bool = True) -> Scenario:
    return Scenario(((prepare, measure),), has_peer)


SCENARIOS: Mapping[str, Scenario] = {
    "quota": _one(binding.start_under_quota),
    "burst": _one(binding.burst),
    "shared": _one(binding.shared),
    "limited": _one(binding.limited),
    "throttled": _one(binding.throttled),
    "latency": _one(binding.latency),
    "failing": _one(binding.failing),
    "idle": _one(binding.idle),
    "admission": _one(admission.admission, has_peer=False),
    "claims": _one(storage.claims),
    "gang": _one(storage.gang, storage.classes),
    "waiting": _one(storage.waiting, storage.classes, has_peer=False),
    "waits": _one(storage.waits, storage.classes, has_peer=False),
    "volumes": _one(storage.volumes, storage.crowd),
    "swap": _one(swapping.swap, has_peer=False),
    "gpus": _one(looking.gpus, has_peer=False),
    "scale": Scenario(
        [(partial(growth.grow, size=size), partial(growth.at_size, size=size)) for size in growth.SIZES],
        title=f"{growth.BINDS} binds beside {', '.join(f'{size:,}' for size in growth.SIZES)} pods of "
        "about 7 KB, with a tenth as many nodes.",
    ),
}
"""In the order of running: those that leave much behind come last."""


def measure(bench: Bench, name: str, subjects: Sequence[Subject], rounds: int) -> Found:
    """Runs one scenario.

    Args:
        bench: Where.
        name: Which.
        subjects: The programs; the first is ours.
        rounds: How often each is measured.
    """
    scenario = SCENARIOS[name]
    found = Found(scenario.about, [{} for _ in range(rounds)])
    bench.peer = next(iter(subjects[1:]), None)
    subjects = subjects if scenario.has_peer else subjects[:1]
    for prepare, work in scenario.stages:
        prepare(bench)
        for number, figures in enumerate(found.rounds):
            for subject in subjects if number % 2 == 0 else reversed(subjects):
                bench.clear()
                bench.subject = replace(subject)
                print(f"{name}: round {number + 1}, {subject.name} ...", file=sys.stderr, flush=True)
                try:
                    figures.setdefault(subject.name, []).extend(work(bench))
                except (UnfinishedError, ControlPlaneError) as error:
                    found.notes.append(f"{subject.name}: {error}")
    bench.subject = subjects[0]
    bench.clear()
    bench.empty()
    return found
