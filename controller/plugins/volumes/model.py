"""Claims, volumes and nodes as volumebinding reads them: only what somebody judges by. Pure.

A cluster may have ten thousand volumes, so what is kept of one is a few hundred bytes.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import orjson
from msgspec import Struct

from controller.kai.pods import full_name
from controller.kai.quantity import quantity
from controller.kai.selectors import node_selected, node_selector_text
from controller.plugins.volumes.migration import migratable_source, selectors_on_node
from controller.runtime.client import Object

NO_PROVISIONER = "kubernetes.io/no-provisioner"
SELECTED_NODE = "volume.kubernetes.io/selected-node"

_BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"  # older than the field, and it wins


class Claim(Struct, frozen=True):
    """A PersistentVolumeClaim.

    Attributes:
        namespace: Its namespace.
        short_name: Its name there.
        uid: Its uid.
        version: Its resourceVersion.
        class_name: Its storage class; empty means volumes without a class.
        size: The storage that it asks for, in bytes.
        size_text: The same as it was written.
        problem: Why it cannot be understood, with field and value; empty if it can.
        volume_name: The volume that it is, or wants to be, bound to.
        bound: Whether the volume controller says that it is bound, for good.
        deleted: Whether it is being deleted.
        lost: Whether the volume that it was bound to is gone.
        selected_node: The node that it is to be provisioned for, or empty.
        controllers: Uids of the objects that it was made for.
        selector: Of volumes, by their labels; None for all.
        access_modes: That a volume has to have.
        mode: Of the volume.
        attributes_class: Its VolumeAttributesClass, or empty.
    """

    namespace: str
    short_name: str
    uid: str
    version: str
    class_name: str
    size: Fraction
    size_text: str
    problem: str
    volume_name: str
    bound: bool
    deleted: bool
    lost: bool
    selected_node: str
    controllers: tuple[str, ...]
    selector: Object | None
    access_modes: tuple[str, ...]
    mode: str
    attributes_class: str

    @classmethod
    def of(cls, item: Object) -> "Claim":
        """The claim that the API server has."""
        metadata, spec = item["metadata"], item["spec"]
        size_text = str(((spec.get("resources") or {}).get("requests") or {}).get("storage", 0))
        size, problem = Fraction(0), ""
        try:
            size = quantity(size_text)
        except ValueError as error:
            problem = f"spec.resources.requests.storage: {error}"
        volume_name = str(spec.get("volumeName") or "")
        annotations = _annotations(item)
        return cls(
            namespace=metadata["namespace"],
            short_name=metadata["name"],
            uid=str(metadata["uid"]),
            version=str(metadata.get("resourceVersion", "")),
            class_name=class_name(item),
            size=size,
            size_text=size_text,
            problem=problem,
            volume_name=volume_name,
            bound=bool(volume_name) and _BIND_COMPLETED in annotations,
            deleted="deletionTimestamp" in metadata,
            lost=(item.get("status") or {}).get("phase") == "Lost",
            selected_node=str(annotations.get(SELECTED_NODE) or ""),
            controllers=tuple(
                str(owner["uid"])
                for owner in metadata.get("ownerReferences") or ()
                if owner.get("controller")
            ),
            selector=spec.get("selector"),
            access_modes=tuple(spec.get("accessModes") or ()),
            mode=str(spec.get("volumeMode") or "Filesystem"),
            attributes_class=str(spec.get("volumeAttributesClassName") or ""),
        )

    @property
    def name(self) -> str:
        """Namespace and name, for people."""
        return f"{self.namespace}/{self.short_name}"


class ClaimReference(NamedTuple):
    """The claim that a volume is kept for; whoever ties it by hand need not know a uid."""

    namespace: str
    name: str
    uid: str


class Volume(Struct, frozen=True):
    """A PersistentVolume.

    Attributes:
        name: Its name.
        uid: Its uid.
        version: Its resourceVersion.
        class_name: Its storage class, or empty.
        size: Its capacity in bytes; 0 if it says none that can be understood.
        mode: Filesystem or Block.
        attributes_class: Its VolumeAttributesClass, or empty.
        access_modes: That it has.
        labels: That a claim may select it by.
        affinity: The NodeSelector of its node affinity; None if every node will do.
        source: As `migratable_source` says.
        claim: What it is kept for; None if for nobody.
        phase: What the volume controller says of it.
        deleted: Whether it is being deleted.
    """

    name: str
    uid: str
    version: str
    class_name: str
    size: Fraction
    mode: str
    attributes_class: str
    access_modes: tuple[str, ...]
    labels: Mapping[str, str]
    affinity: Object | None
    source: str
    claim: ClaimReference | None
    phase: str
    deleted: bool

    @classmethod
    def of(cls, item: Object, alike: "Alike | None" = None) -> "Volume":
        """The volume that the API server has; what it has in common with others is kept once."""
        alike = Alike() if alike is None else alike
        metadata, spec = item["metadata"], item["spec"]
        reference = spec.get("claimRef")
        return cls(
            name=str(metadata["name"]),
            uid=str(metadata.get("uid", "")),
            version=str(metadata.get("resourceVersion", "")),
            class_name=alike.once(class_name(item)),
            size=alike.size(str((spec.get("capacity") or {}).get("storage", 0))),
            mode=alike.once(str(spec.get("volumeMode") or "Filesystem")),
            attributes_class=alike.once(str(spec.get("volumeAttributesClassName") or "")),
            access_modes=alike.once(tuple(spec.get("accessModes") or ())),
            labels=alike.tree(metadata.get("labels") or {}),
            affinity=alike.tree((spec.get("nodeAffinity") or {}).get("required")),
            source=migratable_source(item),
            claim=None if reference is None else claim_reference(reference),
            phase=alike.once(str((item.get("status") or {}).get("phase") or "")),
            deleted="deletionTimestamp" in metadata,
        )

    @property
    def affinity_text(self) -> str:
        """What its node affinity asks for, in words; empty if it asks for nothing."""
        return node_selector_text(self.affinity)

    def tied_to(self, claim: Claim) -> bool:
        """Whether it is kept for a claim: by its claimRef, which may lack the uid."""
        kept = self.claim
        same_name = kept is not None and (kept.namespace, kept.name) == (claim.namespace, claim.short_name)
        return same_name and kept is not None and kept.uid in ("", claim.uid)

    def owned_by(self, claim: Claim) -> bool:
        """Whether it is this very claim's: by a claimRef with its uid."""
        return self.claim is not None and self.claim.uid == claim.uid


def claim_reference(reference: Object) -> ClaimReference:
    """A claimRef as it was written; what it lacks is empty."""
    namespace, name, uid = (str(reference.get(key) or "") for key in ("namespace", "name", "uid"))
    return ClaimReference(namespace, name, uid)


def class_name(item: Object) -> str:
    """The storage class of a claim or a volume: an annotation wins over the field, even an empty one."""
    annotations = _annotations(item)
    if _CLASS_ANNOTATION in annotations:
        return str(annotations[_CLASS_ANNOTATION] or "")
    return str(item["spec"].get("storageClassName") or "")


class Alike:
    """What many volumes have in common, kept once for all of them."""

    def __init__(self) -> None:
        self._values: dict[Any, Any] = {}
        self._trees: dict[bytes, Any] = {}
        self._sizes: dict[str, Fraction] = {}

    def once(self, value: Any) -> Any:  # noqa: ANN401 -- of the type given
        """An equal value that was met before, or this one."""
        return self._values.setdefault(value, value)

    def tree(self, value: Any) -> Any:  # noqa: ANN401 -- of the type given
        """The same for what JSON can say."""
        return self._trees.setdefault(orjson.dumps(value), value) if value else value

    def size(self, text: str) -> Fraction:
        """A capacity in bytes; 0 if it cannot be understood, since such a volume fits nobody."""
        if text not in self._sizes:
            try:
                self._sizes[text] = quantity(text)
            except ValueError:
                self._sizes[text] = Fraction(0)
        return self._sizes[text]


class Place(Struct, frozen=True):
    """A node as a volume sees it.

    Attributes:
        node: The node.
        migrated: The in-tree volume plugins that CSI drivers stand in for there.
    """

    node: Object
    migrated: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The node's name."""
        return full_name(self.node)

    @property
    def labels(self) -> Mapping[str, str]:
        """The node's labels."""
        return self.node["metadata"].get("labels") or {}

    def reaches(self, volume: Volume) -> bool:
        """Whether the volume's node affinity allows the node."""
        return any(node_selected(selector, self.node) for selector in self._selectors(volume))

    def demands(self, volume: Volume) -> str:
        """What the volume's node affinity asks of this node, in words."""
        return node_selector_text(self._selectors(volume)[-1])

    def _selectors(self, volume: Volume) -> list[Object | None]:
        return list(selectors_on_node(volume.source, volume.affinity, volume.labels, self.migrated))


def _annotations(item: Object) -> Mapping[str, str]:
    return item["metadata"].get("annotations") or {}
