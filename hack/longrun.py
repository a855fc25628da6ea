"""A day of requests in fast time: what the binder holds at rest must not grow. Used by hack/soak and a test.

An hour is some hundreds of requests of all kinds in namespaces of its own: pods that go, requests that are
taken back, others that fail. At its end all is removed; what the process then holds, with nothing in its
caches and queues, is what it would never let go of.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from benchmark.binder import Binder, Subject
from benchmark.objects import NODE, Object, bind_request, pod
from controlplane import ControlPlane
from controlplane.process import Guard
from kubelet import Kubelet

ROOT = Path(__file__).resolve().parents[1]
NAMESPACES = 5
ROUND = 250
ENDS_WITHIN_S = 180.0
REST_S = 3.0
RESERVATIONS = "/api/v1/namespaces/kai-resource-reservation/pods"
CREATORS = 6

CPU, SHARED, NO_NODE, NO_POD, TAKEN_BACK, LATE = "cpu", "shared", "no-node", "no-pod", "taken-back", "late"
MIXTURE = {CPU: 70, SHARED: 14, NO_NODE: 6, NO_POD: 4, TAKEN_BACK: 4, LATE: 2}
"""Of each hundred requests."""
ENDS: Mapping[str, tuple[str, ...]] = {
    CPU: ("Succeeded",),
    SHARED: ("Succeeded",),
    NO_NODE: ("Failed",),
    NO_POD: ("Failed",),
    TAKEN_BACK: (),
    LATE: ("Succeeded",),
}
"""The phases in which a kind may end; none if the request is gone."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What the process holds at rest.

    Attributes:
        requests: That have ended so far.
        seconds: Since the first one.
        resident_mib: Resident memory.
        peak_mib: The most that was ever resident.
        files: Descriptors.
        threads: Threads.
        queued: Keys in its queues; those that wait for a retry are not among them.
        objects: Of Python, that came since its caches were filled first.
        surprises: Lines of its log that nobody should ever see.
    """

    requests: int
    seconds: float
    resident_mib: float
    peak_mib: float
    files: int
    threads: int
    queued: int
    objects: int
    surprises: int

    @classmethod
    def of(cls, binder: Binder, requests: int, seconds: float) -> Sample:
        """Reads it."""
        status = Path(f"/proc/{binder.pid}/status").read_text()
        queued = re.findall(r"^workqueue_depth\{.*\} ([0-9.]+)$", binder.metrics(), re.MULTILINE)
        log = Path(binder.log).read_text(errors="replace")
        return cls(
            requests=requests,
            seconds=seconds,
            resident_mib=binder.memory_mib("VmRSS"),
            peak_mib=binder.memory_mib("VmHWM"),
            files=binder.files(),
            threads=int(re.findall(r"Threads:\s+(\d+)", status)[0]),
            queued=round(sum(map(float, queued))),
            objects=_objects_of(binder),
            surprises=log.count("Traceback") + log.count("unforeseen"),
        )

    def __str__(self) -> str:
        return (
            f"{self.requests:8} {self.seconds:8.0f} s {self.resident_mib:7.1f} MiB {self.peak_mib:7.1f} MiB "
            f"{self.files:5} {self.threads:7} {self.queued:6} {self.objects:7} {self.surprises:9}"
        )


COUNTING = """
import gc, os, signal

def count(*_):
    gc.collect()
    path = os.environ["COUNT"]
    with open(path + ".new", "w") as out:
        out.write(str(len(gc.get_objects())))
    os.rename(path + ".new", path)

signal.signal(signal.SIGUSR1, count)
"""
"""Run at the start of the binder: has it say how many objects it holds, caches and queues included."""

HEAD = "requests     time    resident        peak files threads queued objects surprises"


def growth(samples: Sequence[Sample]) -> str:
    """What has grown from the first third of the samples to the last, in words; empty if nothing has."""
    third = max(1, len(samples) // 3)
    # The first hour fills what is filled once.
    early, late = samples[1 : third + 1] or samples[:1], samples[-third:]
    # The events of the last 4,096 are remembered, to count those up that come again.
    limits = {"resident_mib": 16.0, "files": 2.0, "threads": 1.0, "queued": 0.0, "surprises": 0.0}
    limits["objects"] = 6000.0
    grown = []
    for name, most in limits.items():
        before, after = (median(getattr(item, name) for item in part) for part in (early, late))
        if after - before > most:
            grown.append(f"{name} from {before:.1f} to {after:.1f}")
    return ", ".join(grown)


class Day:
    """Makes requests hour by hour, and sees to it that each ends as it should."""

    def __init__(self, plane: ControlPlane, binder: Binder) -> None:
        """Begins with nothing; the plane needs no controller manager, the binder runs."""
        self._plane = plane
        self._binder = binder
        self._pool = ThreadPoolExecutor(CREATORS)
        self._began_s = time.monotonic()
        self._hours = self._done = 0

    def hour(self, requests: int) -> Sample:
        """Has so many requests come and go; what the binder holds when all are gone."""
        self._hours += 1
        spaces = [_Space(self._plane, f"hour-{self._hours}-{number}") for number in range(NAMESPACES)]
        for space in spaces:
            space.make()
        left = requests
        while left > 0:
            count = min(ROUND, left)
            self._round(spaces, count)
            left -= count
        for space in spaces:
            space.clear()
        _wait(lambda: not self._plane.request("GET", RESERVATIONS)["items"], "a reservation stays")
        time.sleep(REST_S)
        self._done += requests
        return Sample.of(self._binder, self._done, time.monotonic() - self._began_s)

    def _round(self, spaces: Sequence[_Space], count: int) -> None:
        jobs = list(islice(_kinds(), count))
        parts = [(space, jobs[number :: len(spaces)]) for number, space in enumerate(spaces)]
        # Those of the round before go while these come.
        list(self._pool.map(lambda part: part[0].add(part[1]), parts))
        for space in spaces:
            _wait(space.all_ended, f"requests of {space.namespace} have not ended as they should")
        list(self._pool.map(lambda part: part[0].clear(), parts))


class _Space:
    """One namespace."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.namespace = namespace
        self._plane = plane
        self._core = f"/api/v1/namespaces/{namespace}"
        self._requests = f"/apis/scheduling.run.ai/v1alpha2/namespaces/{namespace}/bindrequests"
        self._kinds: dict[str, str] = {}
        self._made = self._rounds = 0

    def make(self) -> None:
        send = self._plane.request
        send("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        send("POST", f"{self._core}/serviceaccounts", {"metadata": {"name": "default"}})

    def add(self, kinds: Sequence[str]) -> None:
        """Makes a pod and a request of each kind; two that share make a group."""
        shared = 0
        for kind in kinds:
            self._made += 1
            group = ""
            if kind == SHARED:
                group, shared = f"{self.namespace}-{self._rounds}-{shared // 2}", shared + 1
            self._one(kind, f"{kind}-{self._made}", group)
        self._rounds += 1

    def _one(self, kind: str, name: str, group: str) -> None:
        send, uid = self._plane.request, ""
        if kind not in (NO_POD, LATE):
            uid = send("POST", f"{self._core}/pods", pod(name, group=group))["metadata"]["uid"]
        body = bind_request(name, uid, group=group)
        if kind in (NO_POD, LATE):
            body["metadata"].pop("ownerReferences")
        if kind == NO_NODE:
            body["spec"] |= {"selectedNode": "no-such-node", "backoffLimit": 1}
        if kind == LATE:
            body["spec"]["backoffLimit"] = 4
        send("POST", self._requests, body)
        if kind == LATE:
            send("POST", f"{self._core}/pods", pod(name))
        if kind == TAKEN_BACK:
            send("DELETE", f"{self._requests}/{name}")
        self._kinds[name] = kind

    def all_ended(self) -> bool:
        """Whether each request is in a phase in which it may end."""
        items = self._plane.request("GET", self._requests)["items"]
        phases = {item["metadata"]["name"]: (item.get("status") or {}).get("phase") for item in items}
        return all(
            phases.get(name) in ENDS[kind] if ENDS[kind] else name not in phases
            for name, kind in self._kinds.items()
        )

    def clear(self) -> None:
        """Removes all that was made, and what the binder has made of it."""
        for path in (self._requests, f"{self._core}/pods", f"{self._core}/configmaps"):
            self._plane.request("DELETE", path, {"gracePeriodSeconds": 0})
        self._kinds.clear()


def _kinds() -> Iterator[str]:
    """Kinds of requests in their mixture, without end; those of a kind stand apart."""
    hundred = [kind for kind, count in MIXTURE.items() for _ in range(count)]
    while True:
        yield from (hundred[number * 37 % 100] for number in range(100))


def _wait(check: Callable[[], Any], problem: str) -> None:
    deadline_s = time.monotonic() + ENDS_WITHIN_S
    while not check():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{problem} within {ENDS_WITHIN_S:g} s")
        time.sleep(0.25)


def prepare(plane: ControlPlane) -> None:
    """CRD, roles and the node of all pods."""
    for folder in ("config/crd", "config/rbac"):
        plane.kubectl("apply", "-f", str(ROOT / "config/default/namespaces.yaml"))
        plane.kubectl("apply", "-k", str(ROOT / folder))
    plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    body: Object = {"metadata": {"name": NODE, "labels": {"nvidia.com/gpu.memory": "15360"}}}
    plane.request("POST", "/api/v1/nodes", body)


def soak(folder: Path, kubernetes: str, hours: Sequence[int], show: Callable[[str], None]) -> list[Sample]:
    """Runs a binder, with the limits of its Deployment but for a lease, through hours of so many requests."""
    guard = Guard()
    with ControlPlane(folder, kubernetes=kubernetes, controller_manager=False) as plane, Kubelet(plane):
        prepare(plane)
        binder = _counted(Subject(plane, folder, guard, ROOT))
        binder.start()
        try:
            binder.wait_answers()
            day, samples = Day(plane, binder), []
            show(HEAD)
            for requests in hours:
                samples.append(day.hour(requests))
                show(str(samples[-1]))
        finally:
            binder.stop(10.0)
    guard.close()
    return samples


def _counted(subject: Subject) -> Binder:
    """A binder that says how many objects it holds."""
    folder = subject.directory / "counting"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(COUNTING)
    path = f"PYTHONPATH={folder}:{subject.checkout}"
    return Binder(subject, flags=(), prefix=("env", path, f"COUNT={subject.directory / 'objects'}"))


def _objects_of(binder: Binder) -> int:
    """How many objects it holds now."""
    assert binder.pid is not None  # noqa: S101 -- it runs
    answer = Path(binder.log).parent / "objects"
    answer.unlink(missing_ok=True)
    os.kill(binder.pid, signal.SIGUSR1)
    _wait(answer.exists, "the binder does not count its objects")
    return int(answer.read_text())


def main() -> int:
    """The command hack/soak; 0 if nothing has grown."""
    parser = argparse.ArgumentParser(
        prog="hack/soak",
        description="Has thousands of requests come and go and prints what the binder holds after each hour.",
    )
    parser.add_argument("--requests", type=int, default=50_000, help="of all hours (%(default)s)")
    parser.add_argument(
        "--hours", type=int, default=24, help="after each of which it is looked at (%(default)s)"
    )
    parser.add_argument("--kubernetes", default="1.36", help="minor of the API server (%(default)s)")
    options = parser.parse_args()
    hours = [options.requests // options.hours] * options.hours
    with tempfile.TemporaryDirectory(prefix="kai-binder-soak-") as folder:
        samples = soak(Path(folder), options.kubernetes, hours, lambda line: print(line, flush=True))
    grown = growth(samples)
    print(f"Grown: {grown}" if grown else "Nothing has grown.")
    return 1 if grown else 0
