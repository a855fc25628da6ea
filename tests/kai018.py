"""What KAI v0.18's scheduler would have asked, derived from what v0.17's did: requests, and their pods.

Nobody recorded a v0.18. What is known to differ is changed here (N-1 to N-10): the groups stand in both
fields, in the same order, with a mode in the newer one; predictedNUMAMemoryGroups is on one request. Names,
uids, groups and devices are others, so that both sets can be bound in one namespace.
`python -m tests.kai018` writes the file, and a unit test compares it.
"""

import json
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, uuid5

DATA = Path(__file__).parent / "data"
RECORDED = DATA / "kai-bindrequests.json"
FILE = DATA / "kai-018-bindrequests.json"

SM_SHARING = ("half-a", "half-b")
"""Both halves of one GPU; the others' users take turns."""
MEMORY_GROUPS = {"cpu-only": [{"memoryNodes": ["0"], "amount": {"memory": "64Mi"}}]}

_DEVICES = {"card-0": "card-2", "card-1": "card-3", "gpu-0": "gpu-1"}
_MADE_BEFORE = ("one-card", "late-local", "late-made")
"""Claims that pods name."""


def renamed(name: str) -> str:
    """The name in this set of an object in the recorded one."""
    return f"{name}-018"


def mode_of(name: str) -> str:
    """How the users of the GPUs of the recorded request of this name share the compute units."""
    return "sm-sharing" if name in SM_SHARING else "time-slicing"


def derived(recorded: dict[str, Any]) -> dict[str, Any]:
    """The list of requests of v0.18, made from the list of v0.17's."""
    return {"apiVersion": "v1", "items": [_request(item) for item in recorded["items"]], "kind": "List"}


def pod(recorded: dict[str, Any]) -> dict[str, Any]:
    """The pod of a request of v0.18, made from the one of v0.17's: it says its mode, if it wants another."""
    name = recorded["metadata"]["name"]
    text = json.dumps(recorded)
    prefix = recorded["metadata"]["annotations"].get("runai/shared-gpu-configmap")
    for old in (*_MADE_BEFORE, *([prefix] if prefix else ())):
        text = text.replace(old, renamed(old) if old != prefix else f"v018-{old}")
    made: dict[str, Any] = json.loads(text)
    made["metadata"]["name"] = renamed(name)
    if name in SM_SHARING:
        made["metadata"]["annotations"]["nvidia.com/container.main.gpu-compute.mode"] = mode_of(name)
    return made


def _request(recorded: dict[str, Any]) -> dict[str, Any]:
    metadata, spec = recorded["metadata"], json.loads(json.dumps(recorded["spec"]))
    name = metadata["name"]
    spec["podName"] = renamed(spec["podName"])
    groups = [_another(group) for group in spec.get("selectedGPUGroups", ())]
    if groups:
        spec["selectedGPUGroups"] = groups
        spec["selectedFractionalGpuGroups"] = [
            {"id": group, "computeSharingMode": mode_of(name)} for group in groups
        ]
    if name in MEMORY_GROUPS:
        spec["predictedNUMAMemoryGroups"] = MEMORY_GROUPS[name]
    brought = [item["allocation"] for item in spec.get("resourceClaimAllocations", ())]
    if "extendedResourceClaimAllocation" in spec:
        brought.append(spec["extendedResourceClaimAllocation"]["allocation"])
    for allocation in brought:
        for result in allocation["devices"]["results"]:
            result["device"] = _DEVICES[result["device"]]
    owners = [
        {**owner, "name": renamed(owner["name"]), "uid": _another(owner["uid"])}
        for owner in metadata["ownerReferences"]
    ]
    kept = {key: metadata[key] for key in ("labels", "namespace")}
    made = {**kept, "name": renamed(name), "ownerReferences": owners, "uid": _another(metadata["uid"])}
    head = {key: recorded[key] for key in ("apiVersion", "kind")}
    return {**head, "metadata": made, "spec": spec}


def _another(uid: str) -> str:
    """Another uid, always the same one for the same."""
    return str(uuid5(NAMESPACE_OID, uid))


def text() -> str:
    """The contents of the file."""
    return json.dumps(derived(json.loads(RECORDED.read_text())), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
