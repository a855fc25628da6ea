"""One GPU group on one node, and the pods that share it: reserve, use, protect, release.

Who is a user, who protects, what a cache makes the binder look at, and which reservation counts is its real
code (`Members`, `Usage`, the handlers of changes). What is between is here: each step is one read or write,
or a moment at which others may come first. Each incarnation of the reservation pod gets another GPU.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from controller.kai.outcome import Failed
from controller.kai.request import is_over
from controller.reservation.answer import answer_of
from controller.reservation.manifest import device_of
from tests.unit.model.explorer import Step
from tests.unit.model.worlds import (
    BOUND,
    ENDED,
    GROUP,
    NODE,
    PENDING,
    Pod,
    Request,
    Reservation,
    World,
    at_once,
    lost,
    members_of,
    needed,
    needed_live,
    request_object,
    reservation_object,
    woken_by,
)

T = TypeVar("T")
MOST_MADE = 5


class Bind(NamedTuple):
    """An attempt under way: `at` says what comes next, `found` the reservation that it goes by."""

    request: int
    at: str = "make"
    found: int = 0
    succeeded: bool = False


class Memory(NamedTuple):
    """What the process knows.

    Attributes:
        binds: Attempts by pod.
        due: Requests whose keys are ready.
        release: idle, ready, later; or, while it has the group's lock, live or delete.
        doomed: The reservation that the release has in mind.
        again: Whether the group's key is ready again.
        removed: Reservations that this process removed.
        unseen: The reservation that it made and its cache does not show.
        relied_on: Whether a bind goes by the group's device.
    """

    binds: tuple[Bind | None, ...]
    due: tuple[bool, ...]
    release: str = "idle"
    doomed: int = 0
    again: bool = False
    removed: frozenset[int] = frozenset()
    unseen: int = 0
    relied_on: bool = False


class Left(NamedTuple):
    """What may still happen."""

    crashes: int = 0
    thefts: int = 0
    deletions: int = 0
    asks: int = 2


class State(NamedTuple):
    server: World
    seen: World
    memory: Memory
    left: Left
    made: int = 0
    stolen: bool = False


@dataclass(frozen=True)
class Rules:
    """What the binder decides by; a mutant has another one of these."""

    needed: Callable[[World], bool] = needed
    needed_live: Callable[[World, World], bool] = needed_live
    lost: Callable[[int, World, bool], Failed | None] = lost
    protects_use: bool = True
    looks_when_left: bool = True


class Groups:
    """The model."""

    def __init__(self, pods: int, left: Left, rules: Rules | None = None) -> None:
        self.pods, self.left, self.rules = pods, left, rules or Rules()

    def first(self) -> list[State]:
        world = World((None,) * self.pods, (Pod(),) * self.pods)
        nothing = World((None,) * self.pods, (None,) * self.pods)
        memory = Memory((None,) * self.pods, (False,) * self.pods)
        return [State(world, nothing, memory, self.left)]

    def is_end(self, state: State) -> bool:
        gone = all(pod is None for pod in state.server.pods)
        return gone and self._is_quiet(state) and state.server.reservation is None

    def _is_quiet(self, state: State) -> bool:
        memory = state.memory
        working = any(memory.binds) or any(memory.due) or memory.release != "idle" or memory.again
        return not working and state.seen == state.server

    def wrong(self, state: State) -> str:
        server = state.server
        devices = {pod.device for pod in server.pods if pod is not None and pod.state == BOUND}
        if len(devices) > 1 and not state.stolen:
            return "one group, two GPUs"
        if not self._is_quiet(state):
            return ""
        if any(request is not None and not request.phase for request in server.requests):
            return "a request waits, and nobody works on it"
        if server.reservation is not None and not devices:
            return "a GPU stays reserved for nobody"
        return ""

    # What others do.

    def steps(self, state: State) -> Iterator[Step[State]]:
        yield from self._others(state)
        yield from self._watches(state)
        yield from self._release(state)
        for number, bind in enumerate(state.memory.binds):
            if bind is not None:
                yield from self._bind(state, number, bind)
            elif state.memory.due[number]:
                yield self._take(state, number)

    def _others(self, state: State) -> Iterator[Step[State]]:
        server, left = state.server, state.left
        for number, pod in enumerate(server.pods):
            request = server.requests[number]
            # The pods are alike: whichever is asked for first is p0.
            turn = number == 0 or left.asks < self.left.asks
            if pod is not None and pod.state == PENDING and request is None and left.asks and turn:
                asked = state._replace(left=left._replace(asks=left.asks - 1))
                asked = _request(asked, number, Request(left.asks))
                yield Step(f"the scheduler asks for p{number}", asked)
            if request is not None and request.phase == "Failed":
                yield Step(f"the scheduler deletes what failed for p{number}", _request(state, number, None))
            if pod is None and request is not None:
                yield Step(f"the garbage collector deletes request p{number}", _request(state, number, None))
            if pod is not None and pod.state == BOUND:
                yield Step(f"p{number} ends", _pod(state, number, Pod(ENDED, pod.device)))
            if pod is not None and (pod.state == ENDED or (request is None and not left.asks)):
                yield Step(f"p{number} is deleted", _pod(state, number, None))
            elif pod is not None and left.deletions:
                less = state._replace(left=left._replace(deletions=left.deletions - 1))
                yield Step(f"p{number} is deleted by a user", _pod(less, number, None), is_fault=True)
        if server.reservation is not None and not server.reservation.answered:
            answered = server.reservation._replace(answered=True)
            yield Step("the agent names the GPU", _reserved(state, answered))
        if server.reservation is not None and left.thefts:
            less = state._replace(left=left._replace(thefts=left.thefts - 1), stolen=True)
            yield Step("somebody deletes the reservation", _reserved(less, None), is_fault=True)
        if left.crashes:
            memory = Memory((None,) * self.pods, tuple(map(bool, server.requests)))
            memory = memory._replace(release="ready" if server.reservation or any(server.pods) else "idle")
            less = state._replace(left=left._replace(crashes=left.crashes - 1))
            after = less._replace(seen=server, memory=memory)
            yield Step("the binder is killed and starts", after, is_fault=True)

    def _watches(self, state: State) -> Iterator[Step[State]]:
        """Each kind has a watch of its own, so one may lag behind another."""
        seen, server = state.seen, state.server
        for kind in ("requests", "pods", "reservation"):
            unseen = kind == "reservation" and state.memory.unseen
            if unseen or getattr(seen, kind) != getattr(server, kind):
                after = state._replace(seen=seen._replace(**{kind: getattr(server, kind)}))
                if kind == "reservation":
                    after = after._replace(memory=after.memory._replace(unseen=0))
                yield Step(f"the cache sees the {kind}", _woken(after, seen))

    # What the binder does with a request.

    def _take(self, state: State, number: int) -> Step[State]:
        due = _with(state.memory.due, number, False)
        state = state._replace(memory=state.memory._replace(due=due))
        request, pod = state.seen.requests[number], state.server.pods[number]
        name = f"a worker takes p{number}"
        if request is None or is_over(request_object(number, request)):
            return Step(name, state)
        at = "make" if pod is not None and pod.state == PENDING else "tell"
        bind = Bind(request.uid, at, succeeded=pod is not None and pod.state == BOUND)
        return Step(name, _at(state, number, bind))

    def _bind(self, state: State, number: int, bind: Bind) -> Iterator[Step[State]]:
        match bind.at:
            case "make" if state.memory.release not in ("live", "delete"):  # else the group is locked
                yield self._make(state, number, bind)
            case "wait":
                yield from self._wait(state, number, bind)
            case "confirm":
                yield self._confirm(state, number, bind)
            case "bind":
                yield self._assign(state, number, bind)
            case "tell":
                yield self._tell(state, number, bind)

    def _make(self, state: State, number: int, bind: Bind) -> Step[State]:
        seen, server, memory = state.seen, state.server, state.memory
        shown = at_once(members_of(seen, server, memory.removed).find(GROUP, NODE))
        if shown is not None and seen.reservation is not None:
            found = seen.reservation.uid
        elif memory.unseen:
            found = memory.unseen
        elif self.rules.lost(number, seen, memory.relied_on):
            return self._ended(state, number, bind, f"the GPU of p{number} is lost", succeeded=False)
        elif server.reservation is not None:
            found = server.reservation.uid
        else:
            uid = state.made + 1
            state = _reserved(state._replace(made=uid), Reservation(uid))
            state = state._replace(memory=state.memory._replace(unseen=uid))
            known = [pod for pod in seen.pods if pod in server.pods and pod is not None]
            wrong = "another GPU while one is in use" if any(pod.state == BOUND for pod in known) else ""
            wrong = "reservations are made and removed by turns" if uid > MOST_MADE else wrong
            after = _at(state, number, bind._replace(at="wait", found=uid))
            return Step(f"a reservation is made for p{number}", after, wrong=wrong)
        return Step(
            f"a reservation is found for p{number}", _at(state, number, bind._replace(at="wait", found=found))
        )

    def _wait(self, state: State, number: int, bind: Bind) -> Iterator[Step[State]]:
        memory, seen = state.memory, state.seen.reservation
        if bind.found in memory.removed:
            yield Step(
                f"the reservation of p{number} is to be made anew",
                _at(state, number, bind._replace(at="make", found=0)),
            )
            return
        if memory.unseen == bind.found or (seen is not None and seen.uid < bind.found):
            return  # the cache has not got there yet
        found = reservation_object(seen) if seen is not None else None
        answer = answer_of(found, reservation_object(Reservation(bind.found)))
        if isinstance(answer, Failed):
            yield self._ended(state, number, bind, f"the reservation of p{number} has gone", succeeded=False)
        elif answer is not None:
            state = state._replace(memory=memory._replace(relied_on=True))
            after = _at(state, number, bind._replace(at="confirm"))
            yield Step(f"the GPU of p{number} is known", after)

    def _confirm(self, state: State, number: int, bind: Bind) -> Step[State]:
        for shown in (state.seen.reservation, state.server.reservation):
            same = shown is not None and shown.uid == bind.found and bind.found not in state.memory.removed
            if shown is not None and same and isinstance(device_of(reservation_object(shown)), str):
                return Step(f"the GPU of p{number} is held", _at(state, number, bind._replace(at="bind")))
        return self._ended(state, number, bind, f"the GPU of p{number} is not held any more", succeeded=False)

    def _assign(self, state: State, number: int, bind: Bind) -> Step[State]:
        pod, held = state.server.pods[number], state.server.reservation
        if pod is None or pod.state != PENDING:
            return self._ended(state, number, bind, f"p{number} is gone", succeeded=False)
        wrong = "" if state.stolen or (held is not None and held.uid == bind.found) else "bound to a free GPU"
        state = _pod(state, number, Pod(BOUND, bind.found))
        return self._ended(state, number, bind, f"p{number} is bound", succeeded=True)._replace(wrong=wrong)

    def _ended(self, state: State, number: int, bind: Bind, name: str, *, succeeded: bool) -> Step[State]:
        """The use of the group ends; then it is looked at."""
        state = _at(state, number, Bind(bind.request, "tell", succeeded=succeeded))
        if not _used(state.memory):
            memory = state.memory._replace(unseen=0, relied_on=False)
            state = state._replace(memory=memory)
        return Step(name, _looked_at(state) if self.rules.looks_when_left else state)

    def _tell(self, state: State, number: int, bind: Bind) -> Step[State]:
        seen = state.seen
        live, shown = state.server.requests[number], seen.requests[number]
        if live is not None and live.uid == bind.request:
            told = live._replace(phase="Succeeded" if bind.succeeded else "Failed")
            state = _request(state, number, told)
            if shown is not None and shown.uid == told.uid:
                after = seen._replace(requests=_with(seen.requests, number, told))
                state = _woken(state._replace(seen=after), seen)
        return Step(f"request p{number} is told", _at(state, number, None))

    # What it does with the group.

    def _release(self, state: State) -> Iterator[Step[State]]:
        memory, seen = state.memory, state.seen
        match memory.release:
            case "later":
                yield Step("it is time to look again", _looked_at(state))
            case "ready":
                if self.rules.protects_use and _used(memory):
                    yield Step("the group is in use", _released(state))
                elif self.rules.needed(seen) or seen.reservation is None:
                    yield Step("the group is needed", _released(state))
                else:
                    doomed = memory._replace(release="live", doomed=seen.reservation.uid)
                    yield Step("nobody seems to need the group", state._replace(memory=doomed))
            case "live" if self.rules.needed_live(seen, state.server):
                later = state._replace(memory=memory._replace(release="later", doomed=0))
                yield Step("a live look finds a user", _looked_at(later) if memory.again else later)
            case "live":
                yield Step(
                    "a live look finds no user", state._replace(memory=memory._replace(release="delete"))
                )
            case "delete":
                yield self._remove(state)

    def _remove(self, state: State) -> Step[State]:
        memory, held = state.memory, state.server.reservation
        wrong = ""
        if held is not None and held.uid == memory.doomed:
            users = [pod for pod in state.server.pods if pod is not None and pod.state == BOUND]
            if any(pod.device == held.uid for pod in users):
                wrong = "a GPU was released that a pod uses"
            state = _reserved(state, None)
        removed = memory._replace(removed=memory.removed | {memory.doomed})
        return Step("the reservation is removed", _released(state._replace(memory=removed)), wrong=wrong)


def _used(memory: Memory) -> bool:
    return any(bind is not None and bind.at != "tell" for bind in memory.binds)


def _with(values: tuple[T, ...], number: int, value: T) -> tuple[T, ...]:
    return (*values[:number], value, *values[number + 1 :])


def _at(state: State, number: int, bind: Bind | None) -> State:
    return state._replace(memory=state.memory._replace(binds=_with(state.memory.binds, number, bind)))


def _request(state: State, number: int, request: Request | None) -> State:
    server = state.server
    return state._replace(server=server._replace(requests=_with(server.requests, number, request)))


def _pod(state: State, number: int, pod: Pod | None) -> State:
    return state._replace(server=state.server._replace(pods=_with(state.server.pods, number, pod)))


def _reserved(state: State, reservation: Reservation | None) -> State:
    return state._replace(server=state.server._replace(reservation=reservation))


def _looked_at(state: State) -> State:
    """The group's key is added: at once, or behind the work that is under way."""
    memory = state.memory
    if memory.release in ("live", "delete"):
        return state._replace(memory=memory._replace(again=True))
    return state._replace(memory=memory._replace(release="ready", again=False))


def _released(state: State) -> State:
    """The work on the group is done."""
    memory = state.memory
    release = "ready" if memory.again else "idle"
    return state._replace(memory=memory._replace(release=release, doomed=0, again=False))


def _woken(state: State, before: World) -> State:
    """The keys that a change of what the cache shows brings into the queues, by the real handlers."""
    groups, requests = woken_by(before, state.seen)
    if requests:
        due = tuple(was or number in requests for number, was in enumerate(state.memory.due))
        state = state._replace(memory=state.memory._replace(due=due))
    return _looked_at(state) if groups else state
