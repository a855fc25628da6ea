"""Alert rules over the metrics of real processes, scraped now and played back over any time."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import monitoringgen
import yaml
from promql import Result, Rules, Scrape, evaluate

from tests.binder import Binder
from tests.scraping import OPENMETRICS, text_of

SCRAPED_EVERY_S = 30.0
TARGET = {"job": "binder", "instance": "binder-0", "namespace": "kai-scheduler"}
RULES = monitoringgen.PLAIN.read_text()
ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in yaml.safe_load(RULES)["groups"] for rule in group["rules"]
}
_UNITS_S = {"s": 1, "m": 60, "h": 3600}


def replica(number: int) -> Mapping[str, str]:
    """The labels that Prometheus adds to what one of several binders says."""
    return {**TARGET, "instance": f"binder-{number}"}


@dataclass(slots=True)
class Timeline:
    """What Prometheus would have scraped.

    Attributes:
        now_s: The time of the last scrape.
        scrapes: All so far.
    """

    now_s: float = 1_000_000.0
    scrapes: list[Scrape] = field(default_factory=list)
    _targets: list[Mapping[str, str]] = field(default_factory=list)

    def goes_on(self, minutes: float, *texts: str | None, targets: Sequence[Mapping[str, str]] = ()) -> None:
        """Time passes, in which the targets answer the same at every scrape; None: not at all.

        A target that was there before and is not any more is none for Prometheus from then on.
        """
        ends_s = self.now_s + minutes * 60
        present = [targets[number] if targets else replica(number) for number in range(len(texts))]
        for target in self._targets:
            if target not in present:
                self.scrapes.append(Scrape(self.now_s + SCRAPED_EVERY_S, None, target, gone=True))
        self._targets = present
        while self.now_s < ends_s:
            self.now_s += SCRAPED_EVERY_S
            for target, text in zip(present, texts, strict=True):
                self.scrapes.append(Scrape(self.now_s, text, target, OPENMETRICS))

    def result(self) -> Result:
        """What the rules say over all of it."""
        return evaluate(self.scrapes, Rules(RULES, self.now_s, self.scrapes[0].at_s, SCRAPED_EVERY_S))


def lasts_s(alert: str) -> float:
    """For how long an alert must have its cause."""
    found = re.fullmatch(r"(\d+)([smh])", ALERTS[alert].get("for", "0s"))
    assert found is not None
    return int(found[1]) * _UNITS_S[found[2]]


def minutes_until(alert: str) -> float:
    """After so long with its cause an alert has fired."""
    return lasts_s(alert) / 60 + 6  # what a range looks back on has to be full of it


def with_value(text: str, series: str, value: float) -> str:
    """The same metrics at a later time: this series, which is there, has got another value."""
    changed, count = re.subn(rf"^{re.escape(series)} \S+$", f"{series} {value}", text, flags=re.M)
    assert count == 1, f"there is no {series}"
    return changed


def scrape(binder: Binder) -> str:
    """The metrics of a process, as Prometheus asks for them."""
    return text_of(binder)


def assert_fires(
    alert: str,
    well: Sequence[str | None],
    ill: Sequence[str | None],
    after: Sequence[str | None] = (),
    **labels: str,
) -> None:
    """The alert is quiet while all is well, fires in time when it is not, says so in words, and ends again.

    Args:
        alert: Its name.
        well: What the targets answer before and after.
        ill: What they answer meanwhile.
        after: What they answer then; if it is not given, what they did before, or the same counters.
        **labels: That the alert has beside its own.
    """
    line = Timeline()
    line.goes_on(20, *well)
    began_s = line.now_s
    line.goes_on(minutes_until(alert), *ill)
    fired_s = line.now_s
    line.goes_on(25, *(after or (ill if "increase" in ALERTS[alert]["expr"] else well)))
    result = line.result()
    assert alert not in {item.name for item in result.alerts if item.at_s <= began_s}, "all was well"
    assert alert in result.firing(fired_s), [item for item in result.alerts if item.at_s == fired_s]
    assert alert not in result.firing(line.now_s), "it is over"
    early = [item.at_s for item in result.alerts if item.name == alert and item.state == "firing"]
    assert min(early) - began_s >= lasts_s(alert)
    (shown,) = [item for item in result.alerts if item.name == alert and item.at_s == fired_s]
    assert shown.labels["severity"] == ALERTS[alert]["labels"]["severity"]
    assert labels.items() <= shown.labels.items()
    for text in shown.annotations.values():
        assert "<no value>" not in text
        assert "error" not in text.lower() or "<error>" in text
        assert "{{" not in text
