"""What single objects say, in the form of the answer. Pure.

Called by `judge.py`. Anything may stand in a status: what is not as it should be is left out, never an error.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from controller.explain.answer import Claim, Decision, Group, Other, Pod, Request, Step
from controller.explain.findings import Findings
from controller.explain.reads import Read
from controller.explain.target import Found
from controller.kai.fractions import RESERVATION_MODE
from controller.kai.names import GPU_INDEX, GPU_RESOURCE, NODE_GPU_MEMORY, POD_BOUND
from controller.kai.pods import annotation, is_finished
from controller.kai.request import BindRequest, BindStatus, ComputeMode, InvalidRequestError
from controller.kai.sharing import groups_of_pod, groups_of_request
from controller.runtime.client import Object


def moment_of(value: object) -> datetime | None:
    """A time as Kubernetes writes it; None if it is none."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return None if moment is None else (moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def mapping(value: object) -> Mapping[str, Any]:
    """A mapping, or an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


def listed(value: object) -> Iterator[Mapping[str, Any]]:
    """The mappings in a list; nothing in place of anything else."""
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())


def request_of(item: Object) -> Request:
    """The request itself."""
    metadata, status = item["metadata"], BindStatus.of(item)
    return Request(
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata["name"]),
        created=moment_of(metadata.get("creationTimestamp")),
        phase=status.phase,
        reason=status.reason,
        is_deleting=bool(metadata.get("deletionTimestamp")),
    )


def decision_of(item: Object, findings: Findings) -> Decision:
    """What the scheduler decided; of a request that makes no sense, what can be read of it."""
    state = node_state(findings.node)
    try:
        request = BindRequest.parse(item)
    except InvalidRequestError as error:
        node = mapping(item.get("spec")).get("selectedNode")
        return Decision(node=str(node or ""), node_state=state, problem=str(error))
    known = not findings.reservations.problem
    return Decision(
        node=request.node_name,
        node_state=state,
        type=request.resource_type,
        gpu_count=request.gpu_count,
        gpu_portion=request.gpu_portion or "",
        compute_portion=request.compute_portion or "",
        groups=tuple(
            _group(name, request, findings.reservations.items, is_known=known) for name in request.gpu_groups
        ),
        claims=tuple(str(claim.get("name", "")) for claim in request.claim_allocations),
    )


def node_state(read: Read) -> str:
    """What is known of the chosen node, in words."""
    node = read.one
    if node is None:
        return "does not exist" if read.is_absent and not read.problem else ""
    status, labels = mapping(node.get("status")), node["metadata"].get("labels") or {}
    ready = next((c for c in listed(status.get("conditions")) if c.get("type") == "Ready"), None)
    said = ["ready" if ready.get("status") == "True" else "not ready"] if ready else []
    if mapping(node.get("spec")).get("unschedulable"):
        said.append("cordoned")
    gpus = mapping(status.get("capacity")).get(GPU_RESOURCE)
    if gpus:
        said.append(f"{gpus} GPUs")
    if labels.get(NODE_GPU_MEMORY):
        said.append(f"{NODE_GPU_MEMORY}={labels[NODE_GPU_MEMORY]}")
    return ", ".join(map(str, said))


def _group(name: str, request: BindRequest, reservations: Sequence[Object], *, is_known: bool) -> Group:
    mode = request.compute_mode(name) if request.names_compute_modes else ""
    mine = [pod for pod in reservations if name in groups_of_pod(pod)]
    pod = next((pod for pod in mine if not is_finished(pod)), mine[0] if mine else None)
    if pod is None:
        return Group(name=name, mode=mode, is_known=is_known)
    metadata, spec = pod["metadata"], mapping(pod.get("spec"))
    device = annotation(pod, GPU_INDEX) or ""
    phase = mapping(pod.get("status")).get("phase", "")
    phase = "Terminating" if metadata.get("deletionTimestamp") else phase
    image = next((str(container.get("image", "")) for container in listed(spec.get("containers"))), "")
    return Group(
        name=name,
        mode=mode,
        reservation=f"{metadata.get('namespace', '')}/{metadata['name']}",
        phase=str(phase),
        node=str(spec.get("nodeName", "")),
        device=device,
        reserved_mode=annotation(pod, RESERVATION_MODE) or ComputeMode.TIME_SLICING,
        hindrances="" if device else "; ".join(container_lines(pod, scheduled=True)),
        image=image,
    )


def steps_of(item: Object) -> tuple[Step, ...]:
    """The conditions of a request; those of others are the ones with a domain."""
    generation = item["metadata"].get("generation")
    return tuple(
        Step(
            type=str(condition.get("type", "")),
            status=str(condition.get("status", "")),
            reason=str(condition.get("reason", "")),
            message=str(condition.get("message", "")),
            since=moment_of(condition.get("lastTransitionTime")),
            is_stale=condition.get("observedGeneration") not in (None, generation),
            is_ours="/" not in str(condition.get("type", "")),
        )
        for condition in BindStatus.of(item).conditions
    )


def pod_of(found: Found) -> Pod:
    """The pod."""
    pod = found.pod.one
    if pod is None:
        is_known = not found.pod.problem
        return Pod(
            namespace=found.namespace,
            name=found.pod_name,
            is_known=is_known,
            exists=False,
            is_of_request=found.is_of_pod,
        )
    metadata, spec, status = pod["metadata"], mapping(pod.get("spec")), mapping(pod.get("status"))
    return Pod(
        namespace=found.namespace,
        name=found.pod_name,
        is_known=True,
        exists=True,
        is_of_request=found.is_of_pod,
        scheduler=str(spec.get("schedulerName", "")),
        node=str(spec.get("nodeName") or ""),
        phase=str(status.get("phase", "")),
        is_deleting=bool(metadata.get("deletionTimestamp")),
        lines=tuple(_pod_lines(pod)),
    )


def _pod_lines(pod: Object) -> Iterator[str]:
    gates = [str(gate.get("name")) for gate in listed(mapping(pod.get("spec")).get("schedulingGates"))]
    if gates:
        yield f"scheduling gates: {', '.join(gates)}"
    for condition in listed(mapping(pod.get("status")).get("conditions")):
        is_scheduled = condition.get("type") == "PodScheduled" and condition.get("status") == "True"
        if condition.get("type") in (POD_BOUND, "PodScheduled") and not is_scheduled:
            yield f"{condition['type']} {condition.get('status')}: {_joined(condition)}"
    yield from container_lines(pod)


def container_lines(pod: Object, *, scheduled: bool = False) -> Iterator[str]:
    """What holds a pod's containers up, a line each.

    Args:
        pod: The pod.
        scheduled: Whether to begin with why it has no node.
    """
    status = mapping(pod.get("status"))
    for condition in listed(status.get("conditions")):
        if scheduled and condition.get("type") == "PodScheduled" and condition.get("status") != "True":
            yield f"PodScheduled: {_joined(condition)}"
    if is_finished(pod) and (status.get("reason") or status.get("message")):
        yield _joined(status)
    for field in ("initContainerStatuses", "containerStatuses"):
        for container in listed(status.get(field)):
            for name in ("state", "lastState"):
                state = mapping(container.get(name))
                if state.get("waiting"):
                    yield f"container {container.get('name')}: {_joined(mapping(state['waiting']))}"
                ended = mapping(state.get("terminated"))
                if ended and (ended.get("exitCode") or not is_finished(pod)):
                    text = f"container {container.get('name')} ended with exit code {ended.get('exitCode')}"
                    yield f"{text}: {_joined(ended)}".removesuffix(": ")


def waiting_reasons(pod: Object) -> Iterator[str]:
    """The reasons for which containers of a pod wait."""
    status = mapping(pod.get("status"))
    for field in ("initContainerStatuses", "containerStatuses"):
        for container in listed(status.get(field)):
            reason = mapping(mapping(container.get("state")).get("waiting")).get("reason")
            if reason:
                yield str(reason)


def _joined(values: Mapping[str, Any]) -> str:
    return ": ".join(str(values[name]) for name in ("reason", "message") if values.get(name))


def claims_of(findings: Findings) -> tuple[Claim, ...]:
    """The pod's claims."""
    volumes = [_volume_claim(name, read) for name, read in sorted(findings.claims.items())]
    devices = [_device_claim(name, read) for name, read in sorted(findings.device_claims.items())]
    return (*volumes, *devices)


def _volume_claim(name: str, read: Read) -> Claim:
    kind, claim = "PersistentVolumeClaim", read.one
    if claim is None:
        state = "does not exist" if read.is_absent else "unknown"
        return Claim(kind=kind, name=name, state=state, is_ready=False if read.is_absent else None)
    spec, phase = mapping(claim.get("spec")), str(mapping(claim.get("status")).get("phase", "Pending"))
    if phase == "Bound":
        return Claim(kind=kind, name=name, state=f"bound to {spec.get('volumeName')}", is_ready=True)
    annotations = claim["metadata"].get("annotations") or {}
    provisioner = annotations.get("volume.kubernetes.io/storage-provisioner")
    chosen = annotations.get("volume.kubernetes.io/selected-node")
    said = [f"{phase.lower()}, class {spec.get('storageClassName') or 'none'}"]
    if provisioner:
        said.append(f"provisioner {provisioner}")
    if chosen:
        said.append(f"asked for node {chosen}")
    return Claim(kind=kind, name=name, state=", ".join(said), is_ready=False)


def _device_claim(name: str, read: Read) -> Claim:
    kind, claim = "ResourceClaim", read.one
    if claim is None:
        state = "does not exist" if read.is_absent else "unknown"
        return Claim(kind=kind, name=name, state=state, is_ready=False if read.is_absent else None)
    status = mapping(claim.get("status"))
    users = [str(user.get("name")) for user in listed(status.get("reservedFor"))]
    results = listed(mapping(mapping(status.get("allocation")).get("devices")).get("results"))
    devices = [f"{item.get('driver')}/{item.get('pool')}/{item.get('device')}" for item in results]
    shown = ", ".join(users[:5]) + (f" and {len(users) - 5} more" if len(users) > 5 else "")
    state = f"has {', '.join(devices)}" if devices else "not allocated"
    state += f", reserved for {shown}" if users else ", reserved for nobody"
    return Claim(kind=kind, name=name, state=state, is_ready=bool(devices))


def others_of(item: Object, requests: Iterable[Object]) -> tuple[Other, ...]:
    """Other requests that name one of this request's groups."""
    mine, uid = groups_of_request(item), item["metadata"].get("uid")
    found = []
    for other in requests:
        shared = sorted(mine & groups_of_request(other))
        if other["metadata"].get("uid") == uid or not shared:
            continue
        spec = mapping(other.get("spec"))
        found.append(
            Other(
                namespace=str(other["metadata"].get("namespace", "")),
                name=str(other["metadata"]["name"]),
                pod=str(spec.get("podName", "")),
                group=", ".join(shared),
                portion=str(mapping(spec.get("receivedGPU")).get("portion") or ""),
                phase=BindStatus.of(other).phase,
            )
        )
    return tuple(sorted(found, key=lambda other: (other.group, other.namespace, other.name)))
