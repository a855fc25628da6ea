"""BindRequest: what the scheduler asks for, and the status that it has.

A request is parsed once, here; what cannot be understood is refused with the field and the value.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from controller.kai.names import FRACTION, MAX_OBJECT_NAME, MIG, is_object_name
from controller.kai.reasons import ConditionType, Phase, Reason
from controller.runtime.client import Object
from controller.runtime.parsing import depth_of

MOST_GROUPS = 64
"""GPU groups of one request; no node has as many GPUs."""
_DEEPEST = 100
"""Levels of what is passed on as it is; what is written may have 254."""

SPEC_FIELDS = frozenset(
    {
        *("podName", "selectedNode", "receivedResourceType", "backoffLimit", "selectedGPUGroups"),
        *("receivedGPU", "receivedGPU.count", "receivedGPU.portion", "receivedGPU.computePortion"),
        *("selectedFractionalGpuGroups", "selectedFractionalGpuGroups.id"),
        "selectedFractionalGpuGroups.computeSharingMode",
        *("resourceClaimAllocations", "extendedResourceClaimAllocation"),
        *("predictedNUMAZones", "predictedNUMAMemoryGroups"),
    }
)
"""What is read of a request's spec."""


class ComputeMode(StrEnum):
    """How the pods that share a GPU share its compute units (N-3)."""

    TIME_SLICING = "time-slicing"
    SM_SHARING = "sm-sharing"


class InvalidRequestError(ValueError):
    """A BindRequest that cannot be understood; the message names fields and values."""


class BindStatus(Struct, frozen=True):
    """The status of a request as it stands; read leniently, since anything may have been written there.

    Attributes:
        phase: As in the object; unknown words are kept.
        reason: The last failure as one sentence, or empty.
        failed_attempts: Attempts that have failed so far.
        observed_generation: Of the spec that the status speaks of; None if the CRD prunes it.
        conditions: metav1.Condition objects.
    """

    phase: str = Phase.NEW
    reason: str = ""
    failed_attempts: int = 0
    observed_generation: int | None = None
    conditions: tuple[Object, ...] = ()

    @classmethod
    def of(cls, item: Object) -> "BindStatus":
        """Reads what is well-formed of an object's status."""
        fields = _Fields(item.get("status"), "status")
        return cls(
            phase=fields.get("phase", str) or Phase.NEW,
            reason=fields.get("reason", str) or "",
            failed_attempts=max(0, fields.get("failedAttempts", int) or 0),
            observed_generation=fields.get("observedGeneration", int),
            conditions=tuple(fields.items("conditions", dict)),
        )


def bound_its_pod(conditions: object) -> bool | None:
    """Whether a request whose status has these conditions bound its pod, or found it bound (False).

    None if they do not tell; they may be anything.
    """
    told = [each for each in conditions if isinstance(each, dict)] if isinstance(conditions, list) else []
    if not any(each.get("type") == ConditionType.BOUND and each.get("status") == "True" for each in told):
        return None
    return all(each.get("reason") != Reason.ALREADY_BOUND for each in told)


def is_over(item: Object) -> bool:
    """Whether nothing is left to be done for a request: it succeeded, failed for good, or is being deleted.

    It has failed for good as the scheduler sees it (B-13), unless somebody has mended the spec since.
    """
    metadata, status = item["metadata"], BindStatus.of(item)
    if metadata.get("deletionTimestamp") or status.phase == Phase.SUCCEEDED:
        return True
    if status.phase != Phase.FAILED:
        return False
    if status.observed_generation not in (None, metadata.get("generation")):
        return False
    limit = backoff_limit_of(item)
    return limit is None or status.failed_attempts >= limit


def backoff_limit_of(item: Object) -> int | None:
    """The backoffLimit of a request as the scheduler reads it, even if the rest makes no sense."""
    limit: int | None = _Fields(item.get("spec"), "spec").get("backoffLimit", int)
    return limit


def owner_uid_of(item: Object) -> str | None:
    """The uid of the pod that a request was made for, so far as it says; the one rule of that.

    It says so by an owner that is a pod of the request's pod name. Other owners are others' business, and a
    request without such an owner is for whichever pod has the name.
    """
    spec, owners = item.get("spec"), item["metadata"].get("ownerReferences")
    name = spec.get("podName") if isinstance(spec, dict) else None
    found = owners_of(owners if isinstance(owners, list) else (), name)
    return str(found[0].get("uid")) if found else None


def owners_of(owners: Iterable[Object], pod_name: object) -> list[Object]:
    """Those of a request's owners that say which pod of this name it was made for; the first one counts."""
    this = {"kind": "Pod", "apiVersion": "v1", "name": pod_name}
    return [owner for owner in owners if all(owner.get(name) == value for name, value in this.items())]


class BindRequest(Struct, frozen=True, kw_only=True):
    """A scheduler's decision: this pod, to this node, with these devices (B-1…B-10).

    Attributes:
        namespace: Of the request and of its pod.
        name: Of the request.
        uid: Of the request.
        owner_uid: Of the pod that the scheduler decided for, by `owner_uid_of`.
        pod_name: Of the pod.
        node_name: The chosen node.
        resource_type: `Regular`, `Fraction`, `MigInstance` or empty.
        gpu_count: Number of GPUs; None if absent, which writers that leave out zeros do not tell from 0.
        gpu_portion: Share of each GPU, a decimal number as text; None if absent.
        gpu_groups: One name for each shared GPU, of the newer field if it has any, else of the older (N-5).
        compute_modes: How the pods of each group share its compute units, in the order of the groups; none if
            the request does not say, as before KAI v0.18.
        compute_portion: Share of each GPU's compute power, a decimal number as text; None if absent.
        backoff_limit: Attempts that may fail; None means one.
        claim_allocations: {name, allocation} objects, for the pod's resource claims.
        extended_claim: The claim to be made for extended resources, if any.
        numa_zones: {zone, amount} objects.
        numa_memory_groups: {memoryNodes, amount} objects; None if the request does not say.
    """

    namespace: str
    name: str
    uid: str
    owner_uid: str | None
    pod_name: str
    node_name: str
    resource_type: str = ""
    gpu_count: int | None = None
    gpu_portion: str | None = None
    gpu_groups: tuple[str, ...] = ()
    compute_modes: tuple[ComputeMode, ...] = ()
    compute_portion: str | None = None
    backoff_limit: int | None = None
    claim_allocations: tuple[Object, ...] = ()
    extended_claim: Object | None = None
    numa_zones: tuple[Object, ...] = ()
    numa_memory_groups: tuple[Object, ...] | None = None

    @property
    def full_name(self) -> str:
        """Namespace and name of the request, for messages."""
        return f"{self.namespace}/{self.name}"

    @property
    def full_pod_name(self) -> str:
        """Namespace and name of its pod, for messages."""
        return f"{self.namespace}/{self.pod_name}"

    def compute_mode(self, group: str) -> ComputeMode:
        """How the pods of a group are to share the GPU's compute units (N-5)."""
        return dict(zip(self.gpu_groups, self.compute_modes, strict=False)).get(
            group, ComputeMode.TIME_SLICING
        )

    @property
    def names_compute_modes(self) -> bool:
        """Whether a scheduler that knows compute sharing modes wrote it, as KAI's does since v0.18."""
        return bool(self.compute_modes)

    @property
    def is_fraction(self) -> bool:
        """Whether it gives shares of GPUs."""
        return self.resource_type == FRACTION

    @property
    def takes_devices(self) -> bool:
        """Whether it gives whole devices: GPUs, slices of them (MIG), or what resource claims are for."""
        if self.is_fraction:
            return False
        claims = bool(self.claim_allocations) or bool((self.extended_claim or {}).get("allocation"))
        # A request for no GPU has the portion 0.00 and leaves the count out.
        portion = (self.gpu_portion or "").strip("0.")
        return claims or self.resource_type == MIG or self.gpu_count is not None or bool(portion)

    @classmethod
    def parse(cls, item: Object) -> "BindRequest":
        """Reads an object of the API server.

        Raises:
            InvalidRequestError: A field that must be there is empty, or one has a value of the wrong type;
                possible only where the CRD's schema was loosened, but for the empty ones.
        """
        metadata = item["metadata"]
        fields = _Fields(item.get("spec"), "spec")
        gpu = _Fields(fields.get("receivedGPU", dict), "spec.receivedGPU", fields.problems)
        groups, modes = _groups(fields)
        request = cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            owner_uid=owner_uid_of(item),
            pod_name=fields.required_name("podName"),
            node_name=fields.required_name("selectedNode"),
            resource_type=fields.get("receivedResourceType", str) or "",
            gpu_count=gpu.get("count", int) or None,
            gpu_portion=gpu.get("portion", str),
            gpu_groups=groups,
            compute_modes=modes,
            compute_portion=gpu.get("computePortion", str),
            backoff_limit=fields.get("backoffLimit", int),
            claim_allocations=tuple(fields.items("resourceClaimAllocations", dict)),
            extended_claim=fields.get("extendedResourceClaimAllocation", dict),
            numa_zones=tuple(fields.items("predictedNUMAZones", dict)),
            numa_memory_groups=fields.maybe_items("predictedNUMAMemoryGroups", dict),
        )
        fields.problems += _excesses(request)
        if fields.problems:
            raise InvalidRequestError("; ".join(fields.problems))
        return request


def _excesses(request: BindRequest) -> Iterator[str]:
    """What there is too much of for any use, though the types are right."""
    passed_on = {
        "resourceClaimAllocations": list(request.claim_allocations),
        "extendedResourceClaimAllocation": request.extended_claim,
    }
    for name, value in passed_on.items():
        if value and depth_of(value, _DEEPEST) > _DEEPEST:
            yield f"spec.{name} is nested deeper than {_DEEPEST} levels"
    if len(request.gpu_groups) > MOST_GROUPS:
        yield f"spec names {len(request.gpu_groups)} GPU groups; at most {MOST_GROUPS} are allowed"


class _Fields:
    """Typed reads from an object, which note each problem instead of ending at the first."""

    def __init__(self, values: object, path: str, problems: list[str] | None = None) -> None:
        self.problems: list[str] = problems if problems is not None else []
        self._path = path
        self._values: Mapping[str, Any] = {}
        if isinstance(values, dict):
            self._values = values
        elif values is not None:
            self.problems.append(f"{path} is {values!r}, which is no object")

    def get(self, name: str, kind: type[Any]) -> Any:  # noqa: ANN401 -- of the type given
        value = self._values.get(name)
        if value is None or (isinstance(value, kind) and not isinstance(value, bool)):
            return value
        self._refuse(name, value, kind)
        return None

    def required_name(self, name: str) -> str:
        """The name of an object, as Kubernetes allows it for pods and nodes."""
        value = self.get(name, str) or ""
        if not value and not isinstance(self._values.get(name), (int, float, list, dict)):
            self.problems.append(f"{self._path}.{name} is empty")
        elif value and not is_object_name(value):
            shown = repr(value if len(value) <= MAX_OBJECT_NAME else f"{value[:MAX_OBJECT_NAME]}…")
            self.problems.append(f"{self._path}.{name} is {shown}, which is no name of an object")
        return value

    def items(self, name: str, kind: type[Any]) -> Iterator[Any]:
        values = self.get(name, list) or []
        for index, value in enumerate(values):
            if isinstance(value, kind):
                yield value
            else:
                self._refuse(f"{name}[{index}]", value, kind)

    def maybe_items(self, name: str, kind: type[Any]) -> tuple[Any, ...] | None:
        """The same as a tuple; None if there is no list."""
        return tuple(self.items(name, kind)) if self._values.get(name) is not None else None

    def _refuse(self, name: str, value: object, kind: type[Any]) -> None:
        words = {str: "text", int: "a whole number", dict: "an object", list: "a list"}
        self.problems.append(f"{self._path}.{name} is {value!r}, which is not {words[kind]}")


def _groups(fields: _Fields) -> tuple[tuple[str, ...], tuple[ComputeMode, ...]]:
    """The GPU groups and their modes: those of the newer field if it names any, else of the older (N-5)."""
    ids: list[str] = []
    modes: list[ComputeMode] = []
    for index, item in enumerate(fields.items("selectedFractionalGpuGroups", dict)):
        entry = _Fields(item, f"spec.selectedFractionalGpuGroups[{index}]", fields.problems)
        ids.append(entry.get("id", str) or "")
        mode = entry.get("computeSharingMode", str) or ComputeMode.TIME_SLICING
        if mode in tuple(ComputeMode):
            modes.append(ComputeMode(mode))
        else:
            known = " or ".join(ComputeMode)
            fields.problems.append(
                f"spec.selectedFractionalGpuGroups[{index}].computeSharingMode is {mode!r}, not {known}"
            )
    return (tuple(ids), tuple(modes)) if ids else (tuple(fields.items("selectedGPUGroups", str)), ())
