"""One run: faults and requests as planned, then calm, then the auditor.

Called by `test_chaos.py`. Invariant: the auditor gets the audit log and the state of the end, and nothing
else; what the run itself has noted goes into the table of how long each fault took to be got over.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.auditor import OF_THE_END, Violation, judge
from tests.chaos.faults import Fault, make_faults
from tests.chaos.history import History, State
from tests.chaos.plan import Plan, Trouble
from tests.chaos.recovery import Healed
from tests.chaos.rules.words import is_over
from tests.chaos.workload import Workload, ends_of
from tests.chaos.world import NODES, World, open_world

MAKERS = 6
QUIET_WITHIN_S = 180.0
ROUNDS = 4
"""So often the scheduler asks again for pods that should be bound by now."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a run.

    Attributes:
        history: All writes.
        violations: Of the rules.
        healed: The faults.
        summary: In a line.
    """

    history: History
    violations: Sequence[Violation]
    healed: Sequence[Healed]
    summary: str


def run(plan: Plan, directory: Path, say: Say) -> Result:
    """Carries a plan out, in a folder that gets all logs, and judges what came of it."""
    started_s = time.monotonic()
    with open_world(directory) as world:
        workload = Workload(world)
        workload.prepare()
        say(f"up after {time.monotonic() - started_s:.0f} s; {len(plan.asks)} requests to come")
        healed = _carry_out(plan, world, workload, say)
        say(f"calm after {time.monotonic() - started_s:.0f} s")
        state = _settle(world, workload, say)
        log = world.plane.audit_log
        requests = state.of("bindrequests")
        history = History.read(log)
        state.write(directory / "state.json")
    violations = judge(history, state)
    binds = [entry.done_s for entry in history.bindings() if entry.by_binder]
    summary = (
        f"{len(requests)} requests are left: {ends_of(requests)}; {len(binds)} binds, "
        f"{len(history.entries)} writes, {len(healed)} faults, {len(violations)} violations, "
        f"{time.monotonic() - started_s:.0f} s"
    )
    return Result(history, violations, [item.measured(binds) for item in healed], summary)


def _carry_out(plan: Plan, world: World, workload: Workload, say: Say) -> list[Healed]:
    """Makes requests and faults as they come; everything is healed when it returns."""
    begin_s = time.monotonic()
    healed: list[Healed] = []
    lock = threading.Lock()

    def note(fault: str, began_s: float) -> None:
        with lock:
            healed.append(Healed(fault, began_s, time.time()))

    faults = make_faults(world)
    with ExitStack() as stack:
        lanes = stack.enter_context(ThreadPoolExecutor(max(1, len(plan.lanes))))
        makers = stack.enter_context(ThreadPoolExecutor(MAKERS))
        under_way = [lanes.submit(_lane, lane, faults, begin_s, note, say) for lane in plan.lanes.values()]
        for ask in plan.asks:
            _sleep_until(begin_s + ask.at_s)
            under_way.append(makers.submit(workload.make, ask))
        for future in under_way:
            future.result()
    return healed


def _lane(
    troubles: Sequence[Trouble],
    faults: dict[str, Fault],
    begin_s: float,
    note: Callable[[str, float], None],
    say: Say,
) -> None:
    """One fault after the other; one that comes late lasts as long all the same."""
    for trouble in troubles:
        _sleep_until(begin_s + trouble.at_s)
        fault = faults[trouble.fault]
        say(f"{time.monotonic() - begin_s:6.1f} s  {trouble.fault}, for {trouble.lasts_s:.1f} s")
        began_s = time.time()
        try:
            fault.start(trouble.dice)
            time.sleep(trouble.lasts_s)
        finally:
            fault.heal()
        note(trouble.fault, began_s)


def _settle(world: World, workload: Workload, say: Say) -> State:
    """Waits until all requests are over and nothing changes any more, or time is up; the state of then."""
    for node in NODES:
        world.make_node(node)
    until_s = time.monotonic() + QUIET_WITHIN_S
    state = world.state()
    rounds = 0
    while time.monotonic() < until_s:
        state = world.state()
        if not all(map(is_over, state.of("bindrequests"))):
            time.sleep(1)
        elif rounds < ROUNDS and (again := workload.ask_again()):
            rounds += 1
            say(f"{again} requests failed under the faults and are made again")
        elif judge(History(()), state, OF_THE_END) and judge(
            History.read(world.plane.audit_log), state, OF_THE_END
        ):
            time.sleep(2)
        else:
            return state
    open_ = [item["metadata"]["name"] for item in state.of("bindrequests") if not is_over(item)]
    say(f"not quiet after {QUIET_WITHIN_S:.0f} s; still open: {', '.join(open_) or 'none'}")
    return state


def _sleep_until(at_s: float) -> None:
    time.sleep(max(0.0, at_s - time.monotonic()))
