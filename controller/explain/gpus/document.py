"""The picture as JSON, for programs. Pure.

The form is described in docs/gpus.md and only grows: what is there keeps its name and its meaning. What is
not known is null, never left out.
"""

from collections.abc import Iterable
from fractions import Fraction

from controller.explain.gpus.model import (
    Finding,
    Holding,
    NodeGPUs,
    Picture,
    Pod,
    SharedGPU,
    Use,
)
from controller.runtime.client import Object

VERSION = 1
_DIGITS = 6


def document_of(picture: Picture) -> Object:
    """The document for a picture."""
    return {
        "kind": "GPUs",
        "version": VERSION,
        "nodes": [_node(node) for node in picture.nodes],
        "problems": len(picture.findings),
        "unread": list(picture.sight.unread),
    }


def _node(node: NodeGPUs) -> Object:
    return {
        "name": node.name,
        "product": node.product or None,
        "memoryMiB": node.card_mib,
        "gpus": {
            "total": node.total,
            "shared": node.held,
            "whole": node.taken_whole,
            "free": node.free,
        },
        "shared": [_gpu(gpu) for gpu in node.shared],
        "whole": [_holding(holding) for holding in node.whole],
        "mig": [
            {
                "profile": slices.profile,
                "total": slices.total,
                "used": slices.used,
                "pods": [_holding(holding) for holding in slices.holdings],
            }
            for slices in node.slices
        ],
        "problems": _problems(node.findings),
    }


def _gpu(gpu: SharedGPU) -> Object:
    reservation = gpu.reservation
    return {
        "device": gpu.device or None,
        "group": gpu.group or None,
        "mode": reservation.mode if reservation is not None else None,
        "reservation": {"pod": reservation.name, "phase": reservation.phase}
        if reservation is not None
        else None,
        "awaited": gpu.awaited,
        "portion": _number(gpu.portion if gpu.all_known else None),
        "memoryMiB": gpu.mib if all(use.size.mib is not None for use in gpu.uses) else None,
        "pods": [_use(use) for use in gpu.uses],
        "problems": _problems(gpu.findings),
    }


def _pod(pod: Pod) -> Object:
    """One pod by its name, or how many of other namespaces there are."""
    return {
        "pod": pod.name or None,
        "others": 0 if pod.name else pod.count,
        "phase": pod.phase or None,
    }


def _use(use: Use) -> Object:
    limit = use.limit
    return {
        **_pod(use.pod),
        "portion": _number(use.size.portion),
        "memoryMiB": use.size.mib,
        "limit": {"source": str(limit.source), "memoryMiB": limit.mib} if limit is not None else None,
    }


def _holding(holding: Holding) -> Object:
    return {**_pod(holding.pod), "count": holding.count}


def _problems(findings: Iterable[Finding]) -> list[Object]:
    return [{"reason": str(finding.trouble), "message": finding.message} for finding in findings]


def _number(portion: Fraction | None) -> float | None:
    return round(float(portion), _DIGITS) if portion is not None else None
