"""Watches of the bench's own: they tell when something happened, and cost the measured process nothing.

Used by the scenarios. Each runs in a thread. Invariant: what was there before the watch began is told as
well, so that nothing is missed however early or late it begins.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from controlplane import ControlPlane

from benchmark.objects import PODS, REQUESTS

ENDED = b'"phase":"Succeeded"'
AGAIN_S = 0.05


class Watch:
    """Follows one collection for as long as a block lasts."""

    def __init__(self, plane: ControlPlane, path: str, on_line: Callable[[bytes], None]) -> None:
        """Opens nothing yet.

        Args:
            plane: The control plane.
            path: The collection, with its query.
            on_line: Gets each event, in the watch's thread.
        """
        separator = "&" if "?" in path else "?"
        self._url = f"{plane.url}{path}{separator}watch=true&timeoutSeconds=3600"
        self._headers = {"Authorization": f"Bearer {plane.admin_token}"}
        self._context = ssl.create_default_context(cafile=str(plane.ca_file))
        self._on_line = on_line
        self._over = threading.Event()
        self._stream: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                request = urllib.request.Request(self._url, headers=self._headers)  # noqa: S310 -- ours
                with urllib.request.urlopen(request, context=self._context, timeout=3600) as stream:  # noqa: S310
                    for line in stream:
                        if self._over.is_set():
                            return
                        self._on_line(line)
            except (OSError, http.client.HTTPException):
                time.sleep(AGAIN_S)  # from the start: who listens knows what it has heard before


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
