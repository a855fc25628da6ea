"""Watches of the bench's own: they tell when something happened, and cost the measured process nothing.

Used by the scenarios.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

from controlplane import ControlPlane
from controlplane.watch import Watch

from benchmark.objects import PODS, REQUESTS

ENDED = b'"phase":"Succeeded"'


class Endings(Watch):
    """Notes when each request has ended well.

    Attributes:
        ended_s: When, by the monotonic clock, by the name of the request.
    """

    def __init__(self, plane: ControlPlane, on_first: Callable[[], None] = lambda: None) -> None:
        """Opens nothing yet.

        Args:
            plane: The control plane.
            on_first: Called, in the watch's thread, at the first of all.
        """
        super().__init__(plane, REQUESTS, self._see)
        self.ended_s: dict[str, float] = {}
        self._on_first = on_first
        self._changed = threading.Condition()

    def _see(self, line: bytes) -> None:
        if ENDED not in line:
            return
        now = time.monotonic()
        name = json.loads(line)["object"]["metadata"]["name"]
        if not self.ended_s:
            self._on_first()
        with self._changed:
            self.ended_s.setdefault(name, now)
            self._changed.notify_all()

    def wait(self, count: int, timeout_s: float) -> bool:
        """Waits until so many have ended; False if they have not within that time."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.ended_s) >= count, timeout_s)


class Assignments(Watch):
    """Notes when each pod is seen on a node.

    Attributes:
        seen_s: When, by the monotonic clock, by the name of the pod.
    """

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__(plane, f"{PODS}?fieldSelector=spec.nodeName!=", self._see)
        self.seen_s: dict[str, float] = {}

    def _see(self, line: bytes) -> None:
        now = time.monotonic()
        self.seen_s.setdefault(json.loads(line)["object"]["metadata"]["name"], now)
