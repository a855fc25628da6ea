"""All metrics of a binder in one registry, by the names of Go's controller-runtime and by our own.

Made by the composition root, which also tells the census what to count once there is a client.
docs/metrics.md lists them.
"""

from collections.abc import Callable, Sequence

from controller.binder.backlog import Backlog
from controller.binder.census import Census, Sources
from controller.binder.measures import Measures
from controller.kai.reasons import ConditionType
from controller.plugins import shape
from controller.plugins.registry import PlannedPlugin
from controller.reservation.ledger import Ledger
from controller.runtime.calls import Call
from controller.runtime.metrics import Metrics


class BinderMetrics(Metrics):
    """All metrics of a binder.

    Attributes:
        measures: Of its work.
        census: Of what there is.
    """

    def __init__(self, plugins: Sequence[PlannedPlugin]) -> None:
        super().__init__()
        shape.show(self.registry, plugins)  # for the webhook, which has to prepare pods for the same ones
        steps = (ConditionType.GPU_RESERVED, *(planned.cls.condition_type for planned in plugins))
        self.measures = Measures(self.registry, steps)
        self.census = Census()
        self.registry.register(self.census)

    def count(self, leads: Callable[[], bool], backlog: Backlog, ledger: Ledger) -> None:
        """Has the census count what there is.

        Args:
            leads: Whether this process works.
            backlog: The requests.
            ledger: The GPUs.
        """
        self.census.sources = Sources(leads=leads, backlog=backlog, measures=self.measures, ledger=ledger)

    def observe(self, call: Call, code: str, host: str) -> None:
        """Counts a request to the API server, by Go's names and by ours."""
        self.request(call, code, host)
        self.measures.request(call, code)
