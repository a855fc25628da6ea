"""The node pool that a binder serves: what belongs to it, by a label (KAI's scheduling shards). Pure.

The names are those of KAI's scheduler, which labels the BindRequests that it makes with its pool, and the
pods afterwards. Invariant: of the pools of one label each object is in exactly one; what has no label is in
the pool without a name, the *default shard*. A binder that is told of no label serves the whole cluster.
"""

import hashlib
import re
from collections.abc import Mapping

from msgspec import Struct

from controller.kai.names import LEASE_NAME, is_object_name
from controller.runtime.client import Object

NODE_POOL_LABEL = "kai.scheduler/node-pool"
"""KAI's default."""

SELECTED_NODE_LABEL = "selected-node"
"""On a BindRequest: the node that the scheduler chose."""


class NodePool(Struct, frozen=True):
    """A node pool, or the whole cluster.

    Attributes:
        key: Of the label; empty for the whole cluster.
        value: Of the label; empty for what does not have it.
    """

    key: str = ""
    value: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether there are no shards."""
        return not self.key

    @property
    def selector(self) -> str:
        """The label selector of what is in the pool; empty for all there is."""
        if self.is_whole:
            return ""
        return f"{self.key}={self.value}" if self.value else f"!{self.key}"

    @property
    def others_selector(self) -> str:
        """The label selector of what is in another pool. There must be shards."""
        return f"{self.key}!={self.value}" if self.value else self.key

    @property
    def labels(self) -> dict[str, str]:
        """What marks an object of the pool."""
        return {self.key: self.value} if self.key and self.value else {}

    @property
    def lease_name(self) -> str:
        """Name of the leader's Lease; the default shard has that of a binder without shards.

        So these two, which would both serve what has no label, never lead at a time.
        """
        return lease_name_of(self.value) if self.key else LEASE_NAME

    def holds(self, item: Object) -> bool:
        """Whether an object is in the pool, by its labels as they are."""
        if self.is_whole:
            return True
        labels: Mapping[str, str] = item["metadata"].get("labels") or {}
        # A label without a value is a pool of its own for a selector: nobody's.
        return labels.get(self.key) == self.value if self.value else self.key not in labels


WHOLE = NodePool()
"""The whole cluster."""


def lease_name_of(value: str) -> str:
    """Name of the Lease of the pool with this label value; no two values share one."""
    if not value:
        return LEASE_NAME
    name = f"{LEASE_NAME}-{value}"
    if is_object_name(name):
        return name
    # A label value may have what no name has: capitals, and underscores.
    cleaned = re.sub(r"[^a-z0-9]+", "-", value.lower())
    return f"{LEASE_NAME}-{cleaned}-{hashlib.sha256(value.encode()).hexdigest()[:8]}"
