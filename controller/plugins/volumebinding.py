"""Persistent volumes: a pod is bound only if its volumes are bound and can be reached from the node.

Volumes that are not bound yet are refused, so far.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from controller.api import VOLUME_CLAIMS, VOLUMES, Reason
from controller.plugins.base import BindContext, Failed, Outcome, Plugin, Ready
from controller.runtime import errors
from controller.runtime.client import Object

_BIND_COMPLETED = "pv.kubernetes.io/bind-completed"


class Arguments(BaseModel):
    """Arguments of volumebinding."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bind_timeout_s: Annotated[int, Field(alias="bindTimeoutSeconds", ge=0, lt=2**63)]


class VolumeBinding(Plugin):
    """Sees to it that a pod's persistent volumes are bound, and to its node."""

    name = "volumebinding"
    condition_type = "VolumeBinding"
    priority = 300
    default_arguments: ClassVar = {"bindTimeoutSeconds": "120"}
    arguments_model = Arguments

    def concerns(self, context: BindContext) -> bool:
        """Only claims, own or generic ephemeral ones, need anything; other volumes are the kubelet's."""
        return any(_claim_names(context.pod))

    async def pre_bind(self, context: BindContext) -> Outcome:
        """Checks each claim of the pod and the volume behind it, live."""
        bound = []
        for name, ephemeral in _claim_names(context.pod):
            volume_name = await self._bound_volume(context, name, ephemeral=ephemeral)
            if isinstance(volume_name, Failed):
                return volume_name
            bound.append(f"{name} to {volume_name}")
        return Ready(f"bound: {', '.join(bound)}")

    async def _bound_volume(self, context: BindContext, name: str, *, ephemeral: bool) -> str | Failed:
        """The volume of a claim, if the claim is bound and the node may use the volume."""
        namespace = context.request.namespace
        try:
            claim = await self.client.get(VOLUME_CLAIMS, name, namespace)
        except errors.NotFoundError:
            return Failed(Reason.CLAIM_NOT_FOUND, f"claim {namespace}/{name} does not exist")
        metadata, spec = claim["metadata"], claim["spec"]
        owners = [owner.get("uid") for owner in metadata.get("ownerReferences") or ()]
        if ephemeral and context.pod["metadata"]["uid"] not in owners:
            return Failed(Reason.CLAIM_UNBOUND, f"claim {namespace}/{name} was not made for this pod")
        if metadata.get("deletionTimestamp"):
            return Failed(Reason.CLAIM_UNBOUND, f"claim {namespace}/{name} is being deleted")
        volume_name = spec.get("volumeName")
        if not volume_name or _BIND_COMPLETED not in (metadata.get("annotations") or {}):
            text = (
                f"claim {namespace}/{name} is not bound, and this version of the binder does not bind claims"
            )
            return Failed(Reason.CLAIM_UNBOUND, text)
        try:
            volume = await self.client.get(VOLUMES, volume_name)
        except errors.NotFoundError:
            return Failed(
                Reason.CLAIM_UNBOUND,
                f"claim {namespace}/{name} is bound to {volume_name}, which does not exist",
            )
        if not _reachable(volume, context.node):
            text = f"volume {volume_name} of claim {namespace}/{name} cannot be used on node"
            return Failed(Reason.VOLUME_UNREACHABLE, f"{text} {context.request.node_name}: its node affinity")
        return str(volume_name)


def _claim_names(pod: Object) -> Iterator[tuple[str, bool]]:
    """Names of the pod's claims, and whether each is a generic ephemeral volume's."""
    for volume in pod["spec"].get("volumes") or ():
        if "persistentVolumeClaim" in volume:
            yield volume["persistentVolumeClaim"]["claimName"], False
        elif "ephemeral" in volume:
            yield f"{pod['metadata']['name']}-{volume['name']}", True


def _reachable(volume: Object, node: Object) -> bool:
    """Whether the volume's node affinity allows the node: any term, all of its requirements."""
    required = (volume["spec"].get("nodeAffinity") or {}).get("required")
    if required is None:
        return True
    return any(_term_matches(term, node) for term in required.get("nodeSelectorTerms") or ())


def _term_matches(term: Object, node: Object) -> bool:
    labels: dict[str, str] = node["metadata"].get("labels") or {}
    fields = {"metadata.name": node["metadata"]["name"]}
    expressions, field_expressions = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not field_expressions:
        return False  # an empty term selects nothing
    return all(_requirement_met(item, labels) for item in expressions) and all(
        _requirement_met(item, fields) for item in field_expressions
    )


def _requirement_met(requirement: Object, values: dict[str, str]) -> bool:
    value = values.get(requirement["key"])
    wanted: list[str] = requirement.get("values") or []
    match requirement["operator"]:
        case "In":
            return value is not None and value in wanted
        case "NotIn":
            return value is None or value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            return _compare(value, wanted, operator)
        case _:
            return False


def _compare(value: str | None, wanted: list[str], operator: str) -> bool:
    try:
        have, bound = int(value or ""), int(wanted[0])
    except (ValueError, IndexError):
        return False
    return have > bound if operator == "Gt" else have < bound
