"""Two binders that share a lease take turns: whether a cluster can change from one to the other, and back."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise

from benchmark.bench import Bench
from benchmark.binder import NO_LIMIT, Subject, UnfinishedError
from benchmark.figures import Figure
from benchmark.objects import EVENTS, PODS, REQUESTS, bind_request, pod
from benchmark.watching import Assignments

TURNS = 4
RATE = 10.0
LEAD_S = 6.0
"""For which each leads at least."""
AT_MOST_S = 60.0
PEER_S = 3.0
"""In which a peer starts."""
ELECTED = (*NO_LIMIT, "--leader-elect")
NAMED = (*ELECTED, "--leader-election-namespace=kai-scheduler")


def swap(bench: Bench) -> list[Figure]:
    """Two binders take turns at one lease while requests come in at 10/s; a peer is the other one.

    KAI's finds the namespace of its lease in the files of a pod only: it has to run where there are some.
    """
    programs = [bench.subject, bench.peer or replace(bench.subject, name="other")]
    words = ("from the first to the other", "from the other to the first")
    gaps_s: dict[str, float] = dict.fromkeys(words, 0.0)
    with ExitStack() as stack, Assignments(bench.plane) as assigned, _asking(bench) as asked:
        for turn in range(TURNS + 1):
            began_s = time.monotonic()
            running = stack.pop_all()
            stack.enter_context(_elected(bench, programs[turn % 2]))
            running.close()  # once the next one runs, as a rolling update does
            _wait_for_more(assigned)
            if turn:
                word = words[(turn - 1) % 2]
                gaps_s[word] = max(gaps_s[word], _longest_gap_s(assigned, began_s))
        asked.stop()
        ended = _wait_until_ended(bench, asked.count)
    told = _binds_told(bench, asked)
    return [
        Figure("requests", asked.count),
        Figure("requests that did not end well", asked.count - ended),
        Figure("pods without a node", asked.count - len(assigned.seen_s)),
        Figure("binds told of more than once", told.total() - len(told)),
        *(Figure(f"without a bind, {word}", gap_s, "s") for word, gap_s in gaps_s.items()),
    ]


class _Asking:
    """Asks until it is stopped."""

    def __init__(self, bench: Bench) -> None:
        (self.word,) = bench.names("swap", 1)
        self.count = 0
        self._bench = bench
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._asking = self._pool.submit(self._ask)

    def _ask(self) -> None:
        plane = self._bench.plane
        while not self._over.wait(1 / RATE):
            name = f"{self.word}-{self.count}"
            made = plane.request("POST", PODS, pod(name))
            plane.request("POST", REQUESTS, bind_request(name, made["metadata"]["uid"]))
            self.count += 1

    def stop(self) -> None:
        """Ends it; raises what ended it before."""
        self._over.set()
        self._asking.result()
        self._pool.shutdown()


@contextmanager
def _asking(bench: Bench) -> Iterator[_Asking]:
    asking = _Asking(bench)
    try:
        yield asking
    finally:
        asking.stop()


@contextmanager
def _elected(bench: Bench, subject: Subject) -> Iterator[None]:
    """Runs a binder that wants to lead, from when it answers on."""
    bench.subject = subject
    with bench.binder(NAMED if subject.is_ours else ELECTED) as binder:
        if subject.is_ours:
            binder.wait_answers("healthz")
        else:
            time.sleep(PEER_S)  # KAI's answers 404 whatever it does
        yield


def _wait_for_more(assigned: Assignments) -> None:
    """Waits until pods have been bound for a while."""
    before, began_s = len(assigned.seen_s), time.monotonic()
    while len(assigned.seen_s) < before + RATE * LEAD_S:
        if time.monotonic() > began_s + AT_MOST_S:
            raise UnfinishedError(f"only {len(assigned.seen_s) - before} pods were bound in {AT_MOST_S:g} s")
        time.sleep(0.1)


def _longest_gap_s(assigned: Assignments, since_s: float) -> float:
    moments_s = [since_s, *sorted(moment for moment in list(assigned.seen_s.values()) if moment > since_s)]
    return max(later - earlier for earlier, later in pairwise(moments_s))


def _wait_until_ended(bench: Bench, count: int) -> int:
    """How many requests have ended well, once all have or nothing more can be expected."""
    deadline_s = time.monotonic() + AT_MOST_S
    while True:
        items = bench.plane.request("GET", REQUESTS)["items"]
        ended = [item for item in items if (item.get("status") or {}).get("phase") == "Succeeded"]
        if len(ended) == count or time.monotonic() > deadline_s:
            return len(ended)
        time.sleep(0.5)


def _binds_told(bench: Bench, asked: _Asking) -> Counter[str]:
    """How often events say of a pod that it was bound."""
    told: Counter[str] = Counter()
    for event in bench.plane.request("GET", EVENTS)["items"]:
        name = event["involvedObject"]["name"]
        if event["reason"] == "Bound" and name.startswith(f"{asked.word}-"):
            told[name] += event.get("count") or 1
    return told
