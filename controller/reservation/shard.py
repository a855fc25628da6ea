"""Which reservations are this binder's to release, where several binders serve a node pool each.

A reservation is of the pool that its node is in *now*; its own label says only who made it, or looked after
it last. `GroupReconciler` and `Members` ask. Invariant: a cache that holds a part of a kind says nothing of
what is missing in it: an object that has changed its pool is no more in it, and lives. So whatever is taken
away is looked for live, in all pools. Without shards nothing is asked here.
"""

from collections.abc import Iterable
from contextlib import suppress

from controller.kai.names import BIND_REQUESTS, NODES, PODS
from controller.kai.nodepool import SELECTED_NODE_LABEL, NodePool
from controller.kai.sharing import is_label_value
from controller.runtime import errors
from controller.runtime.cache import Cache
from controller.runtime.client import Client, Object


class Shard:
    """A binder's part of the cluster.

    Attributes:
        pool: The node pool.
    """

    def __init__(self, client: Client, pool: NodePool, nodes: Cache) -> None:
        """Makes it.

        Args:
            client: For live looks.
            pool: The node pool.
            nodes: Those of the pool.
        """
        self.pool = pool
        self._client = client
        self._nodes = nodes

    def shows(self, reservation: Object) -> bool:
        """Whether a reservation is on a node of the pool, by the cache; a reason to look at it."""
        node_name = reservation["spec"].get("nodeName") or ""
        return self.pool.is_whole or self._nodes.get(node_name) is not None

    async def owns(self, reservation: Object) -> bool:
        """Whether it is, by a live read: asked before it is removed.

        The pods of a node that is gone are for Kubernetes' own garbage collector.
        """
        if self.pool.is_whole:
            return True
        try:
            node = await self._client.get(NODES, reservation["spec"].get("nodeName") or "")
        except errors.NotFoundError:
            return False
        return self.pool.holds(node)

    async def versions_of(self, reservations: Iterable[Object]) -> dict[str, str]:
        """The resourceVersions of reservations by their uids, by live reads; none without shards.

        Binders of other pools note on a reservation that they go by it.
        """
        versions: dict[str, str] = {}
        for pod in () if self.pool.is_whole else reservations:
            metadata = pod["metadata"]
            with suppress(errors.NotFoundError):
                found = (await self._client.get(PODS, metadata["name"], metadata["namespace"]))["metadata"]
                versions[found["uid"]] = found["resourceVersion"]
        return versions

    async def requests_on(self, node_names: Iterable[str]) -> list[Object]:
        """The requests for these nodes by a live look, whatever pool they are in; none without shards.

        Of those that do not have the scheduler's label with their node, only those of other pools.
        """
        names = ",".join(sorted(name for name in node_names if is_label_value(name)))  # else no label's value
        if self.pool.is_whole:
            return []
        labelled = [f"{SELECTED_NODE_LABEL} in ({names})"] if names else []
        found: list[Object] = []
        for selector in (*labelled, f"!{SELECTED_NODE_LABEL},{self.pool.others_selector}"):
            page = await self._client.list_all(BIND_REQUESTS, {"labelSelector": selector})
            found += page.items
        return found
