"""What is applied, and how each request must end.

Read by ``play``. Invariant: whatever a sample is said to show is checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "config" / "samples"
OVERLAY = ROOT / "config" / "overlays" / "with-memory-limit"
CLAIM = "claim"
"""The sample, and case, for servers with resource.k8s.io/v1 only."""
NO_SHARING = {"BINDER_PLUGINS__GPUSHARING__ENABLED": "false"}
REFUSED = SAMPLES / "refused.yaml"
CONTRADICTION = SAMPLES / "limit-without-sharing.yaml"


@dataclass(frozen=True, slots=True)
class Case:
    """One BindRequest of namespace default: what it shows and how it must end."""

    name: str
    shows: str
    phase: str
    reason: str = ""
    """How status.reason begins; empty for a pod that is bound."""
    limit: str = ""
    """What the container of a bound pod gets as its limit of GPU memory; empty for none."""


EACH_KIND = (
    Case("cpu", "a pod without a GPU is bound", "Succeeded"),
    Case("whole-gpu", "a pod with a GPU of its own is bound", "Succeeded"),
    Case("mig", "a pod with a MIG slice is bound", "Succeeded"),
    Case("half-a", "half of a GPU, and half of its memory", "Succeeded", limit="7680m"),
    Case("half-b", "the other half of the same GPU", "Succeeded", limit="7680m"),
    Case("shared-gpu", "half of another GPU", "Succeeded", limit="7680m"),
    Case("memory-limit", "the limit is exactly what the pod asked for", "Succeeded", limit="4096m"),
    Case("disk", "a volume that waits for its pod is bound, and the pod with it", "Succeeded"),
    Case(CLAIM, "a device of a resource claim is allocated, and the pod is bound", "Succeeded"),
    Case("unknown-node", "two attempts for a node that is missing", "Failed", "Bound NodeGone: "),
    Case("unknown-pod", "one attempt for a pod that is missing", "Failed", "Bound PodNotFound: "),
)
CONTRADICTORY = (
    Case(
        "limit-without-sharing",
        "the share is refused, and says what to set",
        "Failed",
        "GPUMemoryLimit DependencyNotMet: ",
    ),
    Case("cpu-beside", "a pod that needs neither is bound all the same", "Succeeded"),
)


def samples(*, claims: bool) -> tuple[str, ...]:
    """Arguments of `kubectl apply` for all samples; without `claims`, those that need no device claims."""
    if claims:
        return ("-k", str(SAMPLES))
    listed = re.findall(r"^  - (\S+)$", (SAMPLES / "kustomization.yaml").read_text(), re.MULTILINE)
    kept = [name for name in listed if name != f"{CLAIM}.yaml"]
    return tuple(word for name in kept for word in ("-f", str(SAMPLES / name)))


def has_ended(request: Mapping[str, Any]) -> bool:
    """Whether a request is bound, or has failed for good as the scheduler sees it."""
    status = request.get("status") or {}
    if status.get("phase") != "Failed":
        return bool(status.get("phase") == "Succeeded")
    limit = request["spec"].get("backoffLimit")
    return bool(limit is None or status.get("failedAttempts", 0) >= limit)
