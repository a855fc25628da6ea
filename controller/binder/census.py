"""What there is now, counted whenever the metrics are read: requests, waits, reservations, shares of GPUs.

Registered by the composition root. Invariant: only the process that works says anything, so that the sums
over all replicas are right; and what is read was kept up to date by changes, so that no reading walks
through all objects.
"""

from collections.abc import Callable, Iterable
from time import monotonic

from msgspec import Struct
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.binder.backlog import Backlog
from controller.binder.measures import PREFIX, Measures
from controller.kai.reasons import ConditionType
from controller.reservation.ledger import EXPECTED, UNANSWERED, UNNEEDED, USED, Ledger

_TEXTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "leading": ("1 if this process binds pods; 0 if it stands by", ()),
    "unfinished_requests": (
        "Requests that are still to be bound: new ones, and those of which an attempt failed",
        ("state",),
    ),
    "waiting_requests": ("Requests that wait for somebody else, by the step that waits", ("step",)),
    "oldest_wait_seconds": ("Age of the longest of these waits; 0 if there is none", ("step",)),
    "reservations": (
        "Reservation pods that hold a GPU: pods share it, a request is for it, no device is named, unneeded",
        ("state",),
    ),
    "shared_gpus": ("GPUs that pods share", ()),
    "gpu_shares": ("Pods with a share of a GPU, once for each of their GPUs", ()),
    "unreserved_gpu_shares": ("The same, where no reservation holds the GPU", ()),
    "gpu_memory_limits": ("The same, where the request says that the memory is limited", ()),
}
_Values = Iterable[tuple[tuple[str, ...], float]]


class Sources(Struct, frozen=True, kw_only=True):
    """What is counted.

    Attributes:
        leads: Whether this process works.
        backlog: The requests.
        measures: Has the waits.
        ledger: The GPUs.
    """

    leads: Callable[[], bool]
    backlog: Backlog
    measures: Measures
    ledger: Ledger


class Census(Collector):
    """The gauges of the binder."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """Shows a process that stands by, until it is given its sources.

        Args:
            clock: That of the waits.
        """
        self.sources: Sources | None = None
        self._clock = clock

    @staticmethod
    def labels_of(name: str) -> tuple[str, ...]:
        """The labels of a family, which a family without values does not tell."""
        return _TEXTS[name.removeprefix(PREFIX)][1]

    def describe(self) -> Iterable[Metric]:
        """Every family, without values: the registry asks for their names."""
        return [self._family(name, ()) for name in _TEXTS]

    def collect(self) -> Iterable[Metric]:
        """Every family as it is now."""
        sources = self.sources
        if sources is None or not sources.leads():
            yield self._family("leading", [((), 0.0)])
            return
        yield self._family("leading", [((), 1.0)])
        new, failed = sources.backlog.count()
        yield self._family("unfinished_requests", [(("new",), new), (("failed",), failed)])
        yield from self._waits(sources.measures)
        yield from self._shares(sources.ledger)

    def _waits(self, measures: Measures) -> Iterable[Metric]:
        counts, ages_s = dict.fromkeys(measures.steps, 0), dict.fromkeys(measures.steps, 0.0)
        now = self._clock()
        for named, since_s in measures.waits.values():
            step = named if named in counts else ConditionType.BOUND  # a plugin from outside may name any
            counts[step] += 1
            ages_s[step] = max(ages_s[step], now - since_s)
        yield self._family("waiting_requests", [((step,), count) for step, count in counts.items()])
        yield self._family("oldest_wait_seconds", [((step,), age_s) for step, age_s in ages_s.items()])

    def _shares(self, ledger: Ledger) -> Iterable[Metric]:
        sums = ledger.sums()
        if sums is None:
            return
        states = (
            (USED, sums.used),
            (EXPECTED, sums.expected),
            (UNANSWERED, sums.unanswered),
            (UNNEEDED, sums.unneeded),
        )
        yield self._family("reservations", [((state,), number) for state, number in states])
        yield self._family("shared_gpus", [((), sums.used)])
        yield self._family("gpu_shares", [((), sums.shares)])
        yield self._family("unreserved_gpu_shares", [((), sums.unreserved)])
        yield self._family("gpu_memory_limits", [((), sums.limited)])

    def _family(self, name: str, values: _Values) -> GaugeMetricFamily:
        text, labels = _TEXTS[name]
        family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
        for label_values, value in values:
            family.add_metric(label_values, value)
        return family
