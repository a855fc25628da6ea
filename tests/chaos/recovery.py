"""How long it takes after a fault until pods are bound again, as a run has measured it. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Healed:
    """A fault that is over.

    Attributes:
        fault: Its name.
        began_s: When it began, in seconds since 1970.
        ended_s: When it was healed.
        normal_s: Seconds from there to the next bind; None if none came.
    """

    fault: str
    began_s: float
    ended_s: float
    normal_s: float | None = None

    def measured(self, binds_s: Iterable[float]) -> "Healed":
        """The same with the time to the next bind.

        Args:
            binds_s: When pods were bound.
        """
        after = [bind_s - self.ended_s for bind_s in binds_s if bind_s > self.ended_s]
        return Healed(self.fault, self.began_s, self.ended_s, min(after, default=None))


def table(healed: Sequence[Healed]) -> str:
    """Each fault with its number, the median and the longest time to the next bind."""
    lines = [f"{'fault':<30} {'times':>5} {'median':>8} {'longest':>8}"]
    for fault in sorted({item.fault for item in healed}):
        those = [item for item in healed if item.fault == fault]
        took_s = [item.normal_s for item in those if item.normal_s is not None]
        if took_s:
            lines.append(f"{fault:<30} {len(those):>5} {median(took_s):>6.1f} s {max(took_s):>6.1f} s")
    return "\n".join(lines)
