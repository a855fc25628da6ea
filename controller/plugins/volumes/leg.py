"""One claim of a pod on its way to being bound, and what an attempt knows of it; for volumebinding."""

from msgspec import Struct

from controller.plugins.volumes.model import Claim, Volume


class Leg(Struct):
    """One claim of the pod; kept up to date while it is waited for.

    Attributes:
        claim: The claim as last seen.
        volume: The volume that it is bound to, or that was chosen for it; None if one is to be provisioned.
        provisioner: Of its storage class, if it is to be provisioned.
        rival: The node for which somebody else is having it bound; empty if nobody is.
        rival_is_ours: Whether that is another attempt of this process.
        settled: Whether it is bound, and to a volume that the node can use.
        lost: Whether the claim, or the volume chosen for it, is there no more.
    """

    claim: Claim
    volume: Volume | None = None
    provisioner: str = ""
    rival: str = ""
    rival_is_ours: bool = False
    settled: bool = False
    lost: bool = False

    @property
    def others(self) -> bool:
        """Whether somebody else has it bound, so that there is nothing to do for us but wait."""
        return bool(self.rival) or (bool(self.claim.volume_name) and self.volume is None)

    def awaits(self, node_name: str) -> str:
        """Who is to do what, in words."""
        claim = f"claim {self.claim.name} (class {self.claim.class_name or 'none'})"
        if self.rival:
            cause = "another request" if self.rival_is_ours else "its selected-node annotation"
            return f"{claim} to be bound for node {self.rival}, as {cause} has it"
        if self.volume is not None:
            return f"the volume controller to bind {claim} to volume {self.volume.name}"
        if self.claim.volume_name:
            return f"the volume controller to bind {claim} to volume {self.claim.volume_name}, which it names"
        return f"provisioner {self.provisioner} to make a volume for {claim} on node {node_name}"

    def end_text(self) -> str:
        """What it is bound to, in the end."""
        affinity = self.volume.affinity_text if self.volume is not None else ""
        text = f"{self.claim.short_name} to {self.claim.volume_name}"
        return f"{text} (for {affinity})" if affinity else text

    def tie_text(self) -> str:
        """Which nodes it is tied to, and by what; empty if to none."""
        claim, volume = self.claim, self.volume
        if volume is not None and (claim.bound or volume.owned_by(claim)):
            affinity = volume.affinity_text
            text = f"claim {claim.name} is tied to volume {volume.name}"
            return f"{text} and so to {affinity}" if affinity else ""
        if claim.selected_node and not claim.bound:
            return f"claim {claim.name} is marked to be provisioned on node {claim.selected_node}"
        return ""
