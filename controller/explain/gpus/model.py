"""What is shown of GPUs: nodes, the GPUs of each, the pods on each GPU, and what is wrong. Values only.

`picture.py` makes them, `troubles.py` adds what is wrong, `bars.py` and `document.py` show them.
"""

from collections.abc import Sequence
from enum import StrEnum
from fractions import Fraction

from msgspec import Struct

from controller.explain.gpus.shares import Limit, Size


class Trouble(StrEnum):
    """What is wrong on a GPU or a node; one word for machines."""

    OVER_COMMITTED = "OverCommitted"
    NO_RESERVATION = "NoReservation"
    UNUSED_RESERVATION = "UnusedReservation"
    NO_DEVICE = "NoDevice"
    DUPLICATE_RESERVATION = "DuplicateReservation"
    DUPLICATE_DEVICE = "DuplicateDevice"
    OTHER_DEVICE = "OtherDevice"
    TOO_MANY_GPUS = "TooManyGPUs"
    INVALID_NODE_MEMORY = "InvalidNodeMemory"
    NODE_GONE = "NodeGone"


class Finding(Struct, frozen=True):
    """Something that is wrong.

    Attributes:
        trouble: What.
        message: A sentence with the names and values.
    """

    trouble: Trouble
    message: str


class Pod(Struct, frozen=True):
    """A pod as it is shown.

    Attributes:
        name: Namespace and name; empty if it stands for several.
        namespace: Its namespace; empty if it stands for several.
        phase: As its status says; `Terminating` if it is about to go, empty if it stands for several.
        count: How many pods it stands for.
    """

    name: str
    namespace: str
    phase: str
    count: int = 1

    def __str__(self) -> str:
        return self.name or f"{self.count} other{'' if self.count == 1 else 's'}"


class Use(Struct, frozen=True):
    """A pod's share of a GPU.

    Attributes:
        pod: The pod.
        size: How much it is.
        limit: Of its memory; None where the pod stands for several.
        devices: What the pod was told that it has; none if that is not known.
    """

    pod: Pod
    size: Size
    limit: Limit | None
    devices: frozenset[str] = frozenset()


class Reservation(Struct, frozen=True):
    """The pod that holds a shared GPU.

    Attributes:
        name: Namespace and name.
        phase: As of a `Pod`.
        device: What it reports; empty if nothing, or nothing that is one device.
        problem: What is wrong with the report; empty if nothing is.
        mode: How the users share the compute units.
    """

    name: str
    phase: str
    device: str
    problem: str
    mode: str


class SharedGPU(Struct, frozen=True):
    """A GPU that pods share, or are meant to.

    Attributes:
        group: The scheduler's name for it; empty if the reservation has lost it.
        reservation: Who holds it; None if nobody does, so far as can be seen.
        uses: The pods on it, in the order of their names.
        awaited: Whether a request that is being worked on names it.
        is_hidden: Whether there may be a reservation that cannot be seen.
        findings: What is wrong with it.
    """

    group: str
    reservation: Reservation | None
    uses: tuple[Use, ...]
    awaited: bool = False
    is_hidden: bool = False
    findings: tuple[Finding, ...] = ()

    @property
    def is_held(self) -> bool:
        """Whether it is taken from the GPUs of its node, so far as can be seen."""
        return self.reservation is not None or (self.is_hidden and bool(self.uses))

    @property
    def device(self) -> str:
        """The device, if it is known; else empty."""
        return self.reservation.device if self.reservation is not None else ""

    @property
    def portion(self) -> Fraction:
        """What all known shares are together, of the card."""
        known = [use.size.portion for use in self.uses if use.size.portion]
        return sum(known[1:], known[0]) if known else Fraction(0)

    @property
    def is_over_committed(self) -> bool:
        """Whether the shares are more than the card, by more than rounding explains."""
        portion = self.portion
        return portion > 1 and portion - 1 > sum((use.size.slack for use in self.uses), Fraction(0))

    @property
    def mib(self) -> int:
        """The memory of all known shares, MiB."""
        return sum(use.size.mib or 0 for use in self.uses)

    @property
    def all_known(self) -> bool:
        """Whether the size of each share is known."""
        return all(use.size.portion is not None for use in self.uses)


class Holding(Struct, frozen=True):
    """Whole GPUs, or MIG slices of one profile, that a pod has.

    Attributes:
        pod: The pod.
        count: How many.
    """

    pod: Pod
    count: int


class Slices(Struct, frozen=True):
    """The MIG slices of one profile on a node.

    Attributes:
        profile: E.g. `1g.5gb`.
        total: How many may be allocated; None if the node cannot be seen.
        holdings: Who has some.
    """

    profile: str
    total: int | None
    holdings: tuple[Holding, ...]

    @property
    def used(self) -> int:
        """How many are in use."""
        return sum(holding.count for holding in self.holdings)


class NodeGPUs(Struct, frozen=True, kw_only=True):
    """A node with GPUs.

    Attributes:
        name: Of the node.
        product: The model of its GPUs by its label; empty if it has none.
        card_mib: Memory of each GPU, MiB; None if unknown.
        total: GPUs that may be allocated; None if the node cannot be seen.
        shared: Those that are shared.
        whole: Who has whole ones.
        slices: MIG slices by profile.
        findings: What is wrong with the node as a whole.
    """

    name: str
    product: str
    card_mib: int | None
    total: int | None
    shared: tuple[SharedGPU, ...]
    whole: tuple[Holding, ...]
    slices: tuple[Slices, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def held(self) -> int:
        """GPUs that reservations hold, or must hold where those may not be read."""
        return sum(gpu.is_held for gpu in self.shared)

    @property
    def taken_whole(self) -> int:
        """GPUs that pods have for themselves."""
        return sum(holding.count for holding in self.whole)

    @property
    def free(self) -> int | None:
        """GPUs that nobody holds, so far as can be seen; None if their number is not known."""
        return max(0, self.total - self.held - self.taken_whole) if self.total is not None else None


class Sight(Struct, frozen=True):
    """What could be read, of all there is.

    Attributes:
        nodes: Whether the nodes are known.
        pods: Whether the pods of all namespaces are known.
        reservations: Whether the reservation pods are known.
        requests: Whether all requests are known.
        unread: What is not shown and why, a sentence each.
    """

    nodes: bool = True
    pods: bool = True
    reservations: bool = True
    requests: bool = True
    unread: tuple[str, ...] = ()


class Picture(Struct, frozen=True):
    """All that is shown.

    Attributes:
        nodes: In the order of their names.
        sight: What could be read.
        asked_for: What was to be shown, in words that go before "no GPUs".
    """

    nodes: tuple[NodeGPUs, ...]
    sight: Sight
    asked_for: str = "The nodes have"

    @property
    def findings(self) -> Sequence[tuple[NodeGPUs, SharedGPU | None, Finding]]:
        """All that is wrong, with where."""
        found: list[tuple[NodeGPUs, SharedGPU | None, Finding]] = []
        for node in self.nodes:
            found += ((node, None, finding) for finding in node.findings)
            found += ((node, gpu, finding) for gpu in node.shared for finding in gpu.findings)
        return found
