"""Metrics as Prometheus would scrape them, by name and labels."""

import urllib.request
from dataclasses import dataclass
from typing import Self

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from tests.binder import Binder

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass(frozen=True, slots=True)
class Scraped:
    """All samples of one scrape."""

    samples: Samples

    @classmethod
    def read(cls, text: str, *, is_open: bool = False) -> Self:
        """Reads either format."""
        families = (openmetrics if is_open else plain)(text)
        return cls({(s.name, frozenset(s.labels.items())): s.value for f in families for s in f.samples})

    def value(self, name: str, /, **labels: str) -> float:
        """The value of one series; 0 if it is not there."""
        return self.samples.get((name, frozenset(labels.items())), 0.0)

    def of(self, name: str) -> dict[frozenset[tuple[str, str]], float]:
        """All series of a name, by their labels."""
        return {labels: value for (found, labels), value in self.samples.items() if found == name}

    def total(self, name: str) -> float:
        """The sum of all series of a name."""
        return sum(self.of(name).values())

    def minus(self, earlier: Self) -> Self:
        """By how much each series has grown."""
        return type(self)({key: value - earlier.samples.get(key, 0.0) for key, value in self.samples.items()})


def text_of(binder: Binder, accept: str = OPENMETRICS) -> str:
    """What the process answers to a scrape."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(
        f"http://127.0.0.1:{binder.metrics_port}/metrics", headers={"Accept": accept}
    )
    with opener.open(request, timeout=20) as answer:
        assert answer.headers["Content-Type"] == accept
        return bytes(answer.read()).decode()


def scraped(binder: Binder) -> Scraped:
    """Its metrics now, as OpenMetrics."""
    return Scraped.read(text_of(binder), is_open=True)
