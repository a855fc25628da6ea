"""Whether a volume can serve a claim on a node, and which one serves it best. All pure.

Used by the plugin volumebinding. The rules are the volume binding ones of kube-scheduler, since the
controllers that carry out the binding judge by them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from controller.kai.quantity import quantity
from controller.kai.selectors import label_selected, node_allowed
from controller.runtime.client import Object

NO_PROVISIONER = "kubernetes.io/no-provisioner"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"

_BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"  # older than the field, and it wins


@dataclass(frozen=True, slots=True)
class Claim:
    """A PersistentVolumeClaim as the API server has it, with names for what is read of it."""

    item: Object

    @property
    def name(self) -> str:
        """Namespace and name, for people."""
        return f"{self.item['metadata']['namespace']}/{self.item['metadata']['name']}"

    @property
    def uid(self) -> str:
        """Its uid."""
        return str(self.item["metadata"]["uid"])

    @property
    def class_name(self) -> str:
        """Its storage class; empty means volumes without a class."""
        return class_name(self.item)

    @property
    def size(self) -> Fraction:
        """The storage that it asks for, in bytes."""
        return quantity(((self.item["spec"].get("resources") or {}).get("requests") or {}).get("storage", 0))

    @property
    def volume_name(self) -> str:
        """The volume that it is, or wants to be, bound to."""
        return str(self.item["spec"].get("volumeName") or "")

    @property
    def bound(self) -> bool:
        """Whether the volume controller says that it is bound, for good."""
        return bool(self.volume_name) and _BIND_COMPLETED in _annotations(self.item)

    @property
    def deleted(self) -> bool:
        """Whether it is being deleted."""
        return "deletionTimestamp" in self.item["metadata"]

    @property
    def selected_node(self) -> str:
        """The node that it is to be provisioned for, or empty."""
        return str(_annotations(self.item).get(SELECTED_NODE) or "")


def class_name(item: Object) -> str:
    """The storage class of a claim or a volume; empty for none."""
    return str(_annotations(item).get(_CLASS_ANNOTATION) or item["spec"].get("storageClassName") or "")


def tied_to(volume: Object, claim: Claim) -> bool:
    """Whether a volume is kept for a claim: by its claimRef, which may lack the uid."""
    reference, metadata = volume["spec"].get("claimRef") or {}, claim.item["metadata"]
    same_name = (reference.get("namespace"), reference.get("name")) == (
        metadata["namespace"],
        metadata["name"],
    )
    return same_name and (not reference.get("uid") or reference["uid"] == claim.uid)


def owned_by(volume: Object, claim: Claim) -> bool:
    """Whether a volume is this very claim's: by a claimRef with its uid."""
    return (volume["spec"].get("claimRef") or {}).get("uid") == claim.uid


def obstacle(volume: Object, claim: Claim, node: Object) -> str | None:
    """Why a volume, which no other claim has, cannot serve a claim on a node; None if it can.

    The words follow "is" or "are". For a volume of the claim's own class, or one that is tied to it.
    """
    spec, wanted = volume["spec"], claim.item["spec"]
    if "deletionTimestamp" in volume["metadata"]:
        return "being deleted"
    if _capacity(volume) < claim.size:
        return "too small"
    if (spec.get("volumeMode") or "Filesystem") != (wanted.get("volumeMode") or "Filesystem"):
        return "of another volume mode"
    if (spec.get("volumeAttributesClassName") or "") != (wanted.get("volumeAttributesClassName") or ""):
        return "of another volume attributes class"
    if not node_allowed(volume, node):
        return "not usable on the node"
    if tied_to(volume, claim):
        return None  # the rest was the business of whoever tied it
    if (volume.get("status") or {}).get("phase") != "Available":
        return "not available"
    if not label_selected(wanted.get("selector"), volume["metadata"].get("labels") or {}):
        return "not selected by the claim"
    if not set(wanted.get("accessModes") or ()) <= set(spec.get("accessModes") or ()):
        return "without the access modes"
    return None


def choose(
    volumes: Iterable[Object], claim: Claim, node: Object, promised: Mapping[str, str]
) -> Object | str:
    """The smallest volume that fits a claim on a node, of those that are nobody's.

    Args:
        volumes: Those there are; one that is tied to the claim is not among them.
        claim: The claim, not bound yet.
        node: The node.
        promised: Uids of the claims that volumes are promised to before it is written, by volume name.

    Returns:
        The volume; or, if there is none, why those of its class do not do.
    """
    fitting: list[Object] = []
    problems: Counter[str] = Counter()
    for volume in volumes:
        if class_name(volume) != claim.class_name:
            continue
        promise = promised.get(volume["metadata"]["name"])
        taken = volume["spec"].get("claimRef") is not None or promise not in (None, claim.uid)
        problem = "taken" if taken else obstacle(volume, claim, node)
        if problem is not None:
            problems[problem] += 1
        elif promise is not None:
            return volume  # another pod with this claim is about to take it for it
        else:
            fitting.append(volume)
    if not fitting:
        return _sum_up(problems)
    return min(fitting, key=lambda item: (_capacity(item), item["metadata"]["name"]))


def _capacity(volume: Object) -> Fraction:
    return quantity((volume["spec"].get("capacity") or {}).get("storage", 0))


def _sum_up(problems: Counter[str]) -> str:
    if not problems:
        return "there is none"
    texts = (f"{count} {'is' if count == 1 else 'are'} {problem}" for problem, count in problems.items())
    return ", ".join(texts)


def capacity_suffices(capacity: Object, claim: Claim, node: Object) -> bool:
    """Whether a CSIStorageCapacity has room for a claim that is provisioned for a node."""
    topology = capacity.get("nodeTopology")
    if capacity["storageClassName"] != claim.class_name or topology is None:
        return False
    limit = capacity.get("maximumVolumeSize") or capacity.get("capacity")
    return limit is not None and quantity(limit) >= claim.size and label_selected(topology, _labels(node))


def _annotations(item: Object) -> Mapping[str, str]:
    return item["metadata"].get("annotations") or {}


def _labels(item: Object) -> Mapping[str, str]:
    return item["metadata"].get("labels") or {}
