"""Requests and pods as the API server has them, and what `explain` makes of them."""

import io
from datetime import UTC, datetime
from typing import Any

from controller.explain.answer import Answer
from controller.explain.findings import Findings
from controller.explain.judge import judged
from controller.explain.options import Options
from controller.explain.reads import Read
from controller.explain.target import Found
from controller.explain.terminal import Terminal
from controller.explain.text import show
from controller.kai.pods import is_owner
from controller.runtime.client import Object

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
EARLIER = "2026-01-01T11:59:00Z"


def request(status: Object | None = None, *, name: str = "train", uid: str = "pod-1", **spec: Any) -> Object:  # noqa: ANN401
    """A request for the pod train."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "train", "uid": uid}
    metadata = {
        "name": name,
        "namespace": "team",
        "uid": f"uid-{name}",
        "generation": 1,
        "creationTimestamp": EARLIER,
        "ownerReferences": [owner],
    }
    whole = {"podName": "train", "selectedNode": "gpu-1", "receivedResourceType": "Regular", **spec}
    return {"metadata": metadata, "spec": whole, **({"status": status} if status is not None else {})}


def shared(status: Object | None = None, *groups: str, **spec: Any) -> Object:  # noqa: ANN401
    """A request for shares of GPUs."""
    entries = [{"id": group, "computeSharingMode": "time-slicing"} for group in groups or ("g",)]
    gives: Object = {"receivedResourceType": "Fraction", "selectedFractionalGpuGroups": entries}
    gives["receivedGPU"] = {"count": len(entries), "portion": "0.50"}
    return request(status, **gives, **spec)


def condition(type_: str, status: str, reason: str, message: str = "words") -> Object:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": 1,
        "lastTransitionTime": EARLIER,
    }


def failed(*conditions: Object, attempts: int = 1, **fields: object) -> Object:
    return {
        "phase": "Failed",
        "failedAttempts": attempts,
        "observedGeneration": 1,
        "conditions": list(conditions),
        **fields,
    }


def pod(status: Object | None = None, **spec: Any) -> Object:  # noqa: ANN401
    """The pod train."""
    metadata = {"name": "train", "namespace": "team", "uid": "pod-1"}
    whole = {"schedulerName": "kai-scheduler", "containers": [{"name": "main", "image": "i"}], **spec}
    return {"metadata": metadata, "spec": whole, "status": {"phase": "Pending", **(status or {})}}


def reservation(group: str = "g", status: Object | None = None, *, device: str = "") -> Object:
    metadata = {
        "name": f"gpu-reservation-{group}",
        "namespace": "kai-resource-reservation",
        "uid": f"uid-{group}",
        "labels": {"runai-gpu-group": group},
        "annotations": {"run.ai/reserve_for_gpu_index": device} if device else {},
    }
    spec = {"nodeName": "gpu-1", "containers": [{"name": "resource-reservation", "image": "agent:1"}]}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending", **(status or {})}}


def state(reason: str) -> Object:
    """A status whose container waits for this reason."""
    return {
        "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": reason, "message": "words"}}}]
    }


def answer(
    item: Object | None,
    its_pod: Object | Read | None,
    *,
    missing: list[str] | None = None,
    requests_problem: str = "",
    beside: tuple[Object, ...] = (),
    **found: Any,  # noqa: ANN401
) -> Answer:
    """What is made of a request, its pod and what else was found."""
    read = its_pod if isinstance(its_pod, Read) else Read((its_pod,) if its_pod is not None else ())
    is_of_pod = item is None or read.one is None or is_owner(item, read.one)
    requests = ((item,) if item is not None else ()) + beside
    of = Found("team", item, read, "train", requests, requests_problem, is_of_pod)
    return judged(Findings(of, **found), missing or [], Options(verb="explain"), NOW)


def text(of: Answer, columns: int = 100) -> str:
    out = io.StringIO()
    show(of, Terminal(out, width=columns), NOW)
    return out.getvalue()


def reasons(of: Answer) -> list[str]:
    """What is advised, by the keys of the table."""
    return [advice.reason for advice in of.advice]
