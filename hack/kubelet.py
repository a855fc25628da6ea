"""Plays the kubelet and the reservation agent for reservation pods: test equipment, no part of the binder.

There are no nodes behind the local control plane, so nothing would ever start a pod there. This stub sees new
reservation pods, sets them Running and writes the device into their annotation, as the agent does (B-93);
late, never, or with a failure, if told so. With `Containers` it plays the kubelet only: it starts our own
agent for each pod, and that writes.
"""

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

from containers import Containers
from controlplane import ControlPlane, ControlPlaneError, RequestError
from controlplane.watch import Watch

Object = dict[str, Any]

GPU_INDEX = "run.ai/reserve_for_gpu_index"
MERGE_PATCH = "application/merge-patch+json"
POLL_S, REST_S = 0.05, 2.0
"""Between two looks, while a pod is to be answered later, and at most."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What becomes of a reservation pod.

    Attributes:
        device: The device it reports; None: it runs and says nothing.
        delay_s: Seconds after it was first seen.
        failure: A reason: it fails with this one instead, as a kubelet rejects a pod.
        status: It shows this status and says nothing, as a pod whose container cannot start.
    """

    device: str | None = None
    delay_s: float = 0.0
    failure: str | None = None
    status: Object | None = None


def device_of(pod: Object) -> Answer:
    """Reports a device at once, always the same for a pod of this name."""
    digest = hashlib.sha256(pod["metadata"]["name"].encode()).hexdigest()
    parts = (digest[start:end] for start, end in pairwise((0, 8, 12, 16, 20, 32)))
    return Answer(device=f"GPU-{'-'.join(parts)}")


class Kubelet:
    """The stub, running in a thread of its own from `start` to `stop`.

    Attributes:
        answer: Decides for each new pod; may be replaced while it runs.
        answered: Names of the pods that were answered, in order.
    """

    def __init__(
        self,
        plane: ControlPlane,
        *,
        namespace: str = "kai-resource-reservation",
        answer: Callable[[Object], Answer | None] = device_of,
        containers: Containers | None = None,
    ) -> None:
        """Prepares the stub.

        Args:
            plane: The control plane.
            namespace: Of the reservation pods.
            answer: What becomes of a pod; None: not decided yet, it is asked again.
            containers: Run the agent, which then reports the device; without them the stub does.
        """
        self.answer = answer
        self.answered: list[str] = []
        self._plane = plane
        self._containers = containers
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._seen: dict[str, float] = {}
        self._done: set[str] = set()
        self._over = False
        self._changed = threading.Event()
        self._watch = Watch(plane, self._path, lambda _: self._changed.set())
        self._thread = threading.Thread(target=self._run, name="kubelet-stub", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Begins to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._over = True
        self._changed.set()
        self._thread.join(timeout=10.0)

    def _run(self) -> None:
        with self._watch:
            while not self._over:
                self._changed.clear()
                try:
                    is_done = self._answer_all()
                except (ControlPlaneError, RequestError, OSError):
                    is_done = False  # the server is down, or the pod went meanwhile: look again
                self._changed.wait(REST_S if is_done else POLL_S)

    def _answer_all(self) -> bool:
        """Answers all pods that can be; False if one is still to be."""
        is_done = True
        pods = self._plane.request("GET", self._path).get("items") or []
        if self._containers is not None:
            present = [pod["metadata"] for pod in pods if not pod["metadata"].get("deletionTimestamp")]
            self._containers.keep(metadata["uid"] for metadata in present)
        for pod in pods:
            uid = pod["metadata"]["uid"]
            since = self._seen.setdefault(uid, time.monotonic())
            if uid in self._done or pod["metadata"].get("deletionTimestamp"):
                continue
            answer = self.answer(pod)
            if answer is not None and time.monotonic() - since >= answer.delay_s:
                self._play(pod, answer)
                self._done.add(uid)
                self.answered.append(pod["metadata"]["name"])
            else:
                is_done = False
        return is_done

    def _play(self, pod: Object, answer: Answer) -> None:
        path = f"{self._path}/{pod['metadata']['name']}"
        status = answer.status
        if answer.failure is not None:
            status = {"phase": "Failed", "reason": answer.failure, "message": "the kubelet stub was told so"}
        if status is not None:
            self._plane.request("PATCH", f"{path}/status", {"status": status}, MERGE_PATCH)
            return
        self._plane.request("PATCH", f"{path}/status", {"status": {"phase": "Running"}}, MERGE_PATCH)
        if answer.device is None or GPU_INDEX in (pod["metadata"].get("annotations") or {}):
            return  # of one that is made with a device, its maker knows better
        if self._containers is not None:
            self._containers.start(pod, answer.device)
        else:
            body = {"metadata": {"annotations": {GPU_INDEX: answer.device}}}
            self._plane.request("PATCH", path, body, MERGE_PATCH)
