"""Goes through all states of a model, breadth first: what may never be, and whether an end stays in reach.

A model gives its first states, the steps out of each state, and what is wrong with a state. States are named
tuples, which are quick to compare. A fault is a step that nobody may rely on: from each state an end must be
in reach without any more of them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

S = TypeVar("S")
MOST_STATES = 200_000


class Step(NamedTuple, Generic[S]):
    """One thing that may happen next.

    Attributes:
        name: For the trace.
        state: What is after it.
        is_fault: Whether nobody may rely on its happening.
        wrong: What is wrong with taking it, if anything.
    """

    name: str
    state: S
    is_fault: bool = False
    wrong: str = ""


class Model(Protocol[S]):
    """What can be explored."""

    def first(self) -> Iterable[S]:
        """States to begin with."""

    def steps(self, state: S) -> Iterable[Step[S]]:
        """All that may happen in a state."""

    def wrong(self, state: S) -> str:
        """Which rule a state breaks; empty if none."""

    def is_end(self, state: S) -> bool:
        """Whether all is done that was to be done."""


@dataclass(frozen=True, slots=True)
class Explored:
    """How much was gone through."""

    states: int
    steps: int
    ends: int
    depth: int

    def __str__(self) -> str:
        return f"{self.states} states, {self.steps} steps, {self.ends} ends, {self.depth} deep"


class ViolationError(Exception):
    """A rule is broken; the text tells the shortest way there."""


class _Explorer(Generic[S]):
    """States by number, in the order in which they were met."""

    def __init__(self, model: Model[S]) -> None:
        self.model = model
        self.numbers: dict[S, int] = {}
        self.states: list[S] = []
        self.came: list[tuple[int, str] | None] = []
        self.depths: list[int] = []
        self.before: list[list[int]] = []
        self.ends: list[int] = []
        self.steps = 0

    def run(self) -> Explored:
        for state in self.model.first():
            self.meet(state, None)
        number = 0
        while number < len(self.states):
            self.go_on_from(number)
            number += 1
            assert number <= MOST_STATES, "the model is too large"
        self.see_that_an_end_stays_in_reach()
        return Explored(len(self.states), self.steps, len(self.ends), max(self.depths))

    def go_on_from(self, number: int) -> None:
        for step in self.model.steps(self.states[number]):
            self.steps += 1
            if step.wrong:
                raise ViolationError(self.told(step.wrong, number, step))
            after = self.numbers.get(step.state)
            if after is None:
                after = self.meet(step.state, (number, step.name))
            if not step.is_fault:
                self.before[after].append(number)

    def meet(self, state: S, came: tuple[int, str] | None) -> int:
        number = self.numbers[state] = len(self.states)
        self.states.append(state)
        self.came.append(came)
        self.depths.append(0 if came is None else self.depths[came[0]] + 1)
        self.before.append([])
        wrong = self.model.wrong(state)
        if wrong:
            raise ViolationError(self.told(wrong, number))
        if self.model.is_end(state):
            self.ends.append(number)
        return number

    def see_that_an_end_stays_in_reach(self) -> None:
        lead = set(self.ends)
        waiting = list(self.ends)
        while waiting:
            for number in self.before[waiting.pop()]:
                if number not in lead:
                    lead.add(number)
                    waiting.append(number)
        if len(lead) < len(self.states):
            lost = min(set(range(len(self.states))) - lead)  # the first that was met is the nearest
            raise ViolationError(self.told("no end is in reach any more", lost))

    def told(self, wrong: str, number: int, last: Step[S] | None = None) -> str:
        """The way to a state, each step with what it changed."""
        way: list[tuple[str, S]] = [(last.name, last.state)] if last is not None else []
        while (came := self.came[number]) is not None:
            way.append((came[1], self.states[number]))
            number = came[0]
        state = self.states[number]
        lines = [wrong, f"  0. {state}"]
        for count, (name, after) in enumerate(reversed(way), 1):
            lines.append(f"{count:>3}. {name}: {'; '.join(changes(state, after)) or 'nothing changes'}")
            state = after
        return "\n".join(lines)


def explore(model: Model[S]) -> Explored:
    """Goes through all states.

    Raises:
        ViolationError: A rule is broken, or a state is reached from which there is no way to an end.
    """
    return _Explorer(model).run()


def changes(old: Any, new: Any, path: str = "") -> Iterator[str]:  # noqa: ANN401 -- states of any kind
    """Which fields of a state have changed, and to what; what has a short form of its own stays whole."""
    names: tuple[str, ...] = getattr(new, "_fields", ())
    if names and type(old) is type(new) and vars(type(new)).get("__str__") is None:
        for name in names:
            yield from changes(getattr(old, name), getattr(new, name), f"{path}.{name}" if path else name)
    elif old != new:
        yield f"{path} is {new}"
