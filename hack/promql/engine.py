"""Runs the program in ``program``, which is built once from a locked module, and reads what it says.

Called by whoever imports ``promql``. Invariant: nothing here knows PromQL; what a rule or a query means, only
Prometheus' code decides.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from controlplane.build import Component, ensure_built, locked_version

PROGRAM = Path(__file__).parent / "program"
MODULE = "github.com/prometheus/prometheus"
TARGET: Mapping[str, str] = {"job": "binder", "instance": "binder-0", "namespace": "kai-scheduler"}
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class EngineError(Exception):
    """The engine refuses the rules or the scrapes; the text is its own."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """What a target answered.

    Attributes:
        at_s: When, in seconds since the epoch.
        text: Its metrics; None if it did not answer.
        target: The labels that Prometheus adds.
        content_type: Of the text; empty for the older format.
        gone: Whether the target is none any more, so that nothing is said of it from then on.
    """

    at_s: float
    text: str | None
    target: Mapping[str, str] = field(default_factory=lambda: TARGET)
    content_type: str = ""
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Query:
    """An expression.

    Attributes:
        expr: In PromQL.
        at_s: When it is evaluated.
        from_s: The first moment, if there is a step.
        step_s: 0 for one moment, else seconds from moment to moment.
    """

    expr: str
    at_s: float
    from_s: float = 0.0
    step_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Rules:
    """Alerting rules, and when they are evaluated.

    Attributes:
        text: A rules file as Prometheus reads it.
        until_s: The last moment.
        from_s: The first moment.
        interval_s: Seconds from moment to moment.
    """

    text: str
    until_s: float
    from_s: float = 0.0
    interval_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert that is pending or firing at one moment."""

    at_s: float
    name: str
    state: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer: its labels, and pairs of time and value."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a query gave: an error, or series; and what the engine warns of."""

    error: str
    warnings: tuple[str, ...]
    series: tuple[Series, ...]

    @property
    def value(self) -> float:
        """The one value of an answer with one series.

        Raises:
            ValueError: There is none, or more than one.
        """
        ((_, value),) = (point for one in self.series for point in one.points)
        return value


@dataclass(frozen=True, slots=True)
class Result:
    """What came of the rules, and of each query in its order."""

    alerts: tuple[Alert, ...]
    answers: tuple[Answer, ...]

    def firing(self, at_s: float | None = None) -> set[str]:
        """Names of the alerts that fired, at any moment or at this one."""
        return {alert.name for alert in self.alerts if alert.state == "firing" and at_s in (None, alert.at_s)}


def component() -> Component:
    """The program, for the cache of what is built."""
    version = locked_version(PROGRAM, MODULE)
    return Component("promql", ".", PROGRAM, version, "-s -w", "about 2 minutes", ("main.go",))


def ensure_engine() -> Path:
    """The program; built if the cache has it not.

    Raises:
        BuildError: It cannot be built.
    """
    return ensure_built(component())


def evaluate(scrapes: Sequence[Scrape], rules: Rules | None = None, queries: Sequence[Query] = ()) -> Result:
    """Evaluates rules and queries over scrapes.

    Raises:
        EngineError: The scrapes or the rules are none; a query that is none has an answer with an error.
        BuildError: The engine cannot be built.
    """
    wanted: dict[str, Any] = {
        "scrapes": [asdict(scrape) for scrape in scrapes],
        "queries": [asdict(query) for query in queries],
    }
    if rules is not None:
        wanted |= {
            "rules": rules.text,
            "from_s": rules.from_s,
            "until_s": rules.until_s,
            "interval_s": rules.interval_s,
        }
    done = subprocess.run(
        [str(ensure_engine())], input=json.dumps(wanted), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise EngineError(done.stderr.strip())
    found = json.loads(done.stdout)
    return Result(
        tuple(Alert(**alert) for alert in found["alerts"]),
        tuple(_answer(answer) for answer in found["answers"]),
    )


def _answer(found: Mapping[str, Any]) -> Answer:
    series = tuple(
        Series(one["labels"], tuple((at_s, float(value)) for at_s, value in one["points"]))
        for one in found["series"]
    )
    return Answer(found["error"], tuple(found["warnings"]), series)
