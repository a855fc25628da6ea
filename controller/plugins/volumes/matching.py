"""Whether a volume can serve a claim on a node, and which one serves it best. All pure.

Used by the plugin volumebinding. The rules are the volume binding ones of kube-scheduler, since the
controllers that carry out the binding judge by them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction

from msgspec import Struct

from controller.kai.quantity import quantity
from controller.kai.selectors import label_selected
from controller.plugins.volumes.model import Claim, Place, Volume
from controller.runtime.client import Object

OUT_OF_REACH = "not usable on the node"
"""The one obstacle that lasts for a volume that is tied to a claim."""


def obstacle(volume: Volume, claim: Claim, place: Place) -> str | None:
    """Why a volume, which no other claim has, cannot serve a claim on a node; None if it can.

    The words follow "is" or "are". For a volume of the claim's own class, or one that is tied to it.
    """
    if volume.deleted:
        return "being deleted"
    if volume.size < claim.size:
        return "too small"
    if volume.mode != claim.mode:
        return "of another volume mode"
    if volume.attributes_class != claim.attributes_class:
        return "of another volume attributes class"
    if not place.reaches(volume):
        return OUT_OF_REACH
    if volume.tied_to(claim):
        return None  # the rest was the business of whoever tied it
    if volume.phase != "Available":
        return "not available"
    if not label_selected(claim.selector, volume.labels):
        return "not selected by the claim"
    if not set(claim.access_modes) <= set(volume.access_modes):
        return "without the access modes"
    return None


def choose(
    volumes: Iterable[Volume], claim: Claim, place: Place, promised: Mapping[str, str]
) -> Volume | Counter[str]:
    """The smallest volume that fits a claim on a node, of those that are nobody's.

    Args:
        volumes: Of the claim's class, those that are kept for no claim.
        claim: The claim, not bound yet.
        place: The node.
        promised: Uids of the claims that volumes are promised to before it is written, by volume name.

    Returns:
        The volume; or, if there is none, how many do not do, by the reason.
    """
    fitting: list[Volume] = []
    problems: Counter[str] = Counter()
    for volume in volumes:
        promise = promised.get(volume.name)
        problem = "taken" if promise not in (None, claim.uid) else obstacle(volume, claim, place)
        if problem is not None:
            problems[problem] += 1
        elif promise is not None:
            return volume  # another pod with this claim is about to take it for it
        else:
            fitting.append(volume)
    return min(fitting, key=lambda item: (item.size, item.name)) if fitting else problems


def sum_up(problems: Counter[str]) -> str:
    """Why none of the volumes of a class will do."""
    found = {problem: count for problem, count in problems.items() if count}
    if not found:
        return "there is none"
    return ", ".join(f"{count} {'is' if count == 1 else 'are'} {text}" for text, count in found.items())


class Capacity(Struct, frozen=True):
    """A CSIStorageCapacity.

    Attributes:
        class_name: The storage class that it is about.
        limit: The size in bytes of the largest volume that can be made; None if that is not known.
        topology: The LabelSelector of the nodes that it is about; None for no node.
    """

    class_name: str
    limit: Fraction | None
    topology: Object | None

    @classmethod
    def of(cls, item: Object) -> "Capacity":
        """The capacity that the API server has."""
        text = item.get("maximumVolumeSize") or item.get("capacity")
        try:
            limit = None if text is None else quantity(text)
        except ValueError:
            limit = None
        return cls(str(item.get("storageClassName") or ""), limit, item.get("nodeTopology"))

    def suffices(self, claim: Claim, place: Place) -> bool:
        """Whether there is room for a claim that is provisioned for a node."""
        if self.class_name != claim.class_name or self.topology is None or self.limit is None:
            return False
        return self.limit >= claim.size and label_selected(self.topology, place.labels)
