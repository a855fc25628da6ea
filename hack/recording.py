"""Draws docs/dashboard.svg: what the dashboard shows of a binder at work.

hack/dashboard [--seconds 90]

A control plane is started, with a binder that limits memory. Bursts of pods come and go, with and without
shares of GPUs; some have no node, and every tenth agent is slow. The binder is scraped once a second.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmark.bench import ROOT, Bench
from benchmark.binder import NO_LIMIT, Binder, Subject
from benchmark.objects import REQUESTS, bind_request
from controlplane import ControlPlane
from controlplane.process import Guard
from kubelet import Answer, Kubelet, device_of
from monitoringgen import panels
from picture import picture
from promql import Scrape, ensure_engine

TARGET = ROOT / "docs" / "dashboard.svg"
LEFT_OUT = "Webhook"  # there is none in this run
FLAGS = (*NO_LIMIT, '--plugins={"gpumemorylimit":{"enabled":true}}')
_BURST, _SHARED, _LOST = 12, 6, 2
_SLOW_S = 6.0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="hack/dashboard", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=90.0, help="how long it is recorded (%(default)g)")
    seconds = parser.parse_args(argv).seconds
    ensure_engine()
    guard = Guard()
    with (
        tempfile.TemporaryDirectory(prefix="kai-binder-dashboard-") as folder,
        ControlPlane(Path(folder)) as plane,
        Kubelet(plane, answer=Agents()),
    ):
        bench = Bench(Subject(plane, Path(folder), guard, ROOT))
        bench.prepare()
        with bench.binder(FLAGS) as binder:
            binder.wait_answers()
            scrapes = record(bench, binder, seconds)
    guard.close()
    rows = {panel.row for panel in panels()} - {LEFT_OUT}
    TARGET.write_text(picture(scrapes, 1.0, "8s", rows))
    print(f"{TARGET} is written.")
    return 0


class Agents:
    """Every tenth takes its time."""

    def __init__(self) -> None:
        self._asked_s: dict[str, float] = {}

    def __call__(self, pod: dict[str, object]) -> Answer | None:
        """What becomes of a reservation pod; None: nothing yet."""
        metadata = pod["metadata"]
        assert isinstance(metadata, dict)  # noqa: S101 -- the API server's promise
        first_s = self._asked_s.setdefault(metadata["uid"], time.monotonic())
        is_slow = list(self._asked_s).index(metadata["uid"]) % 10 == 4
        return None if is_slow and time.monotonic() - first_s < _SLOW_S else device_of(pod)


def record(bench: Bench, binder: Binder, seconds: float) -> list[Scrape]:
    """Plays users and scheduler, and scrapes; the time begins with 0."""
    began_s, scrapes, tick = time.monotonic(), list[Scrape](), 0
    while (now_s := time.monotonic() - began_s) < seconds:
        scrapes.append(Scrape(now_s, binder.metrics()))
        if tick % 3 == 0:
            act(bench, tick // 3)
        tick += 1
        time.sleep(max(0.0, began_s + tick - time.monotonic()))
    return scrapes


def act(bench: Bench, turn: int) -> None:
    """One burst; the pods of earlier ones go now and then."""
    if turn % 8 == 7:
        bench.clear()
        return
    size = 1 + turn % 3
    bench.decide(bench.pods(_BURST * size))
    bench.decide(bench.pods(_SHARED * size, per_group=2))
    for name, (uid, _) in bench.pods(_LOST * (turn % 2)).items():
        request = bind_request(name, uid)
        request["spec"]["selectedNode"] = "no-such-node"
        bench.plane.request("POST", REQUESTS, request)
