"""What is asked of the binder, what befalls it, and when: all of it from a seed.

Pure: the same seed and length give the same plan, whatever the machine does. Faults are laid out in lanes:
those of one lane follow each other, since they are of one thing; those of different lanes overlap.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

MOST_REQUESTS = 300

KINDS: Mapping[str, int] = MappingProxyType(
    {
        "cpu": 60,
        "whole-gpu": 20,
        "share": 60,
        "share-of-memory": 20,
        "share-of-two": 30,
        "nvfractions": 25,
        "volume-static": 15,
        "volume-made": 15,
        "volume-bound": 10,
        "claim": 20,
        "claim-extended": 8,
        "everything": 8,
        "bad-node": 5,
        "bad-pod": 5,
        "bad-portion": 5,
        "bad-memory": 5,
        "bad-claim": 5,
        "bad-volume": 5,
        "bad-gate": 5,
        "bad-request": 5,
        "broken": 5,
    }
)
"""Requests by kind, and how often each comes."""

LANES: Mapping[str, Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        "control plane": {
            "server-killed": (0.5, 4.0),
            "etcd-slowed": (2.0, 6.0),
            "etcd-stopped": (2.0, 8.0),
            "etcd-killed": (0.5, 2.0),
            "etcd-compacted": (0.0, 0.0),
        },
        "binders": {
            "binder-killed": (0.0, 4.0),
            "binders-killed": (0.0, 3.0),
            "binder-frozen": (1.0, 8.0),
            "binder-frozen-past-its-lease": (17.0, 20.0),
            "tokens-rotated": (0.0, 0.0),
        },
        "network": {
            "calls-delayed": (2.0, 6.0),
            "calls-cut": (2.0, 6.0),
            "answers-lost": (2.0, 6.0),
            "watches-cut": (1.0, 3.0),
            "watches-mute": (2.0, 8.0),
        },
        "refusals": {
            "quota": (2.0, 6.0),
            "bindings-denied": (1.0, 5.0),
            "webhook-down": (2.0, 6.0),
        },
        "users": {
            "pods-deleted": (0.0, 0.0),
            "nodes-deleted": (1.0, 5.0),
            "reservations-deleted": (0.0, 0.0),
            "requests-deleted": (0.0, 0.0),
        },
    }
)
"""Faults by lane, with the least and the most seconds that each lasts."""

GAPS_S: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "control plane": (5.0, 12.0),
        "binders": (6.0, 16.0),
        "network": (3.0, 9.0),
        "refusals": (3.0, 9.0),
        "users": (3.0, 9.0),
    }
)
"""Between two faults of a lane: long enough that, now and then, a binder gets to work."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to be made.

    Attributes:
        at_s: When, from the beginning.
        kind: One of KINDS.
        number: No other request of this kind has it.
        backoff_limit: Of the request; None for none.
        dice: Chooses what else there is to choose.
    """

    at_s: float
    kind: str
    number: int
    backoff_limit: int | None
    dice: int

    @property
    def name(self) -> str:
        """Of the request, and of its pod."""
        return f"{self.kind}-{self.number}"


@dataclass(frozen=True, slots=True)
class Trouble:
    """A fault to come.

    Attributes:
        at_s: When, from the beginning.
        fault: Its name.
        lasts_s: How long, until it is healed.
        dice: Chooses what it hits.
    """

    at_s: float
    fault: str
    lasts_s: float
    dice: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A run.

    Attributes:
        seed: Of the dice.
        length_s: For so long faults and requests come.
        asks: The requests, in order.
        lanes: The faults by lane, in order.
    """

    seed: int
    length_s: float
    asks: tuple[Ask, ...]
    lanes: Mapping[str, tuple[Trouble, ...]]


def make_plan(seed: int, length_s: float, *, calm: bool = False) -> Plan:
    """The plan of a seed, with 300 requests, or three a second if that is less; a calm one has no faults."""
    dice = random.Random(seed)  # noqa: S311 -- no secret
    requests = min(MOST_REQUESTS, round(3 * length_s))
    asks = tuple(_asks(dice, length_s, requests))
    lanes = {lane: () if calm else tuple(_troubles(dice, lane, length_s)) for lane in LANES}
    return Plan(seed, length_s, asks, lanes)


def _asks(dice: random.Random, length_s: float, requests: int) -> Iterator[Ask]:
    """Requests of all kinds, each at least once; they end a little before the faults do."""
    kinds = [*KINDS, *dice.choices([*KINDS], [*KINDS.values()], k=max(0, requests - len(KINDS)))][:requests]
    dice.shuffle(kinds)
    numbers = dict.fromkeys(KINDS, 0)
    for index, kind in enumerate(kinds):
        at_s = length_s * 0.97 * (index + dice.random()) / requests
        yield Ask(at_s, kind, numbers[kind], dice.choice((None, 2, 4)), dice.getrandbits(32))
        numbers[kind] += 1


def _troubles(dice: random.Random, lane: str, length_s: float) -> Iterator[Trouble]:
    """The lane's faults in random order, then again in another, until the time is over."""
    at_s, deck = dice.uniform(*GAPS_S[lane]), list[str]()
    while True:
        if not deck:
            deck = list(LANES[lane])
            dice.shuffle(deck)
        fault = deck.pop()
        lasts_s = dice.uniform(*LANES[lane][fault])
        if at_s + lasts_s > length_s:
            return
        yield Trouble(at_s, fault, lasts_s, dice.getrandbits(32))
        at_s += lasts_s + dice.uniform(*GAPS_S[lane])
