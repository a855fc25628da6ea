"""A watch for tools and tests: it tells of changes as they come, instead of asking again and again.

It runs in a thread. Invariant: what was there before the watch began is told as well, so that nothing is
missed however early or late it begins.
"""

from __future__ import annotations

import http.client
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable
from types import TracebackType
from typing import Self

from controlplane.cluster import ControlPlane

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
