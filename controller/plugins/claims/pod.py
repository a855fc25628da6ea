"""The pod of an attempt as it was seen last, and whether anything may be written for it; for attempt.py.

Where a cache follows the pod, the cache is asked, which costs the server nothing. Invariant: what a cache has
cut off a large pod is not taken for gone: it is as it was when the pod was read live, and a wait reads again.
"""

from collections.abc import Callable
from functools import partial

import anyio

from controller.kai.names import PODS
from controller.kai.outcome import Failed, Ready
from controller.kai.pods import CUT, judge_pod
from controller.kai.reasons import Reason
from controller.plugins.base import BindContext
from controller.runtime import errors
from controller.runtime.changes import Judged, Target
from controller.runtime.client import Client, Object

_FRESH_S = 1.0
"""A pod that no cache follows is read again if it was read longer ago than this."""


class SeenPod:
    """The pod of one attempt.

    Attributes:
        pod: As last seen; its spec is whole.
    """

    def __init__(self, client: Client, context: BindContext) -> None:
        self.pod = context.pod
        self._client = client
        self._context = context
        self._read_s = float("-inf")
        self._read_version = ""

    async def look(self, *, live: bool = False) -> Failed | None:
        """Why nothing may be written for the pod any more.

        Args:
            live: Whether the server is to be asked, as before what cannot be made good.
        """
        target = self._target()
        if not live and self._context.changes.is_followed(target):
            verdict = await self._context.changes.until(Judged(target, self._judge))
        elif not live and anyio.current_time() - self._read_s < _FRESH_S:
            return None
        else:
            try:
                pod = await self._client.get(PODS, target.name, target.namespace)
            except errors.NotFoundError:
                pod = None
            verdict, self._read_s = self._judge(pod), anyio.current_time()
            self._read_version = str(self.pod["metadata"].get("resourceVersion", ""))
        return verdict if isinstance(verdict, Failed) else None

    async def until(self, is_so: Callable[[Object], bool]) -> Failed | None:
        """Waits until the pod is so; Failed if it came to an end meanwhile."""
        while True:
            judge = partial(self._judge_until, is_so)
            verdict = await self._context.changes.until(Judged(self._target(), judge))
            if isinstance(verdict, Failed):
                return verdict
            if is_so(self.pod):
                return None
            failure = await self.look(live=True)
            if failure is not None or is_so(self.pod):
                return failure

    def _judge_until(self, is_so: Callable[[Object], bool], pod: Object | None) -> Ready | Failed | None:
        """Ready if the pod is so, or may be by what was cut off."""
        verdict = self._judge(pod)
        if pod is None or isinstance(verdict, Failed):
            return verdict
        is_unknown = CUT in pod and pod["metadata"]["resourceVersion"] != self._read_version
        return Ready() if is_so(self.pod) or is_unknown else None

    def _target(self) -> Target:
        metadata = self.pod["metadata"]
        return Target(PODS, metadata["name"], metadata["namespace"], metadata.get("resourceVersion", ""))

    def _judge(self, pod: Object | None) -> Ready | Failed:
        """Notes how the pod is; Failed if nothing may be written for it any more."""
        if pod is None:
            text = f"pod {self._context.request.full_pod_name} was deleted"
            return Failed(Reason.POD_NOT_FOUND, text, retry=False)
        verdict = judge_pod(self._context.request, pod, self.pod["metadata"]["uid"])
        if isinstance(verdict, Ready):
            return Failed(Reason.ALREADY_BOUND, verdict.message)  # the pipeline looks, and finds it bound
        if verdict is None:
            known = (self.pod.get("status") or {}) if CUT in pod else {}
            # Of a spec a cache keeps less; the part of it that is read here does not change.
            spec, status = self._context.pod["spec"], {**known, **(pod.get("status") or {})}
            self.pod = {**pod, "spec": spec, "status": status}
        return verdict or Ready()
