"""Who belongs to a GPU group: its reservation pods, its users, and the requests that keep it.

`Reservations` and `GroupReconciler` ask. Who has a share is judged in `evidence`; here it is looked up. What
the caches show is only a reason to look; live looks decide.
"""

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Sequence

from msgspec import Struct

from controller.kai.names import GPU_RESOURCE, GROUP_LABEL, GROUP_LABEL_PREFIX, PODS
from controller.kai.pods import is_finished, is_owner, live
from controller.kai.request import is_over
from controller.kai.sharing import groups_of_pod, groups_of_request
from controller.reservation.devices import chosen, devices_told
from controller.reservation.evidence import asks_for_share, groups_kept, groups_used, has_succeeded, node_of
from controller.reservation.manifest import NAME_PREFIX, ReservationOptions
from controller.reservation.named import named_pods
from controller.reservation.shard import Shard
from controller.reservation.usage import Usage
from controller.runtime import errors
from controller.runtime.cache import Cache, key_of
from controller.runtime.client import Client, Object

GROUP_INDEX = "group"
POD_INDEX = "pod"
NODE_INDEX = "node"


class GroupCaches(Struct, frozen=True):
    """What is known of groups without asking the server.

    All are indexed by group, requests also by pod, reservations also by node. Of requests and pods there may
    be only those of a node pool; the reservations are all there are.
    """

    requests: Cache
    pods: Cache
    reservations: Cache
    shard: Shard

    @property
    def complete(self) -> bool:
        """Whether what is not in them does not exist, but for their lag."""
        return all(cache.problem is None for cache in (self.requests, self.pods, self.reservations))


def pod_key(namespace: str, name: str) -> str:
    """How a pod is named in the index of requests."""
    return f"{namespace}/{name}"


def pods_of_request(item: Object) -> Iterable[str]:
    """The pod that a request names, for the index."""
    spec = item.get("spec")
    name = spec.get("podName") if isinstance(spec, dict) else None
    return (pod_key(item["metadata"]["namespace"], name),) if isinstance(name, str) else ()


def nodes_of_pod(pod: Object) -> Iterable[str]:
    """The node that a pod is on, for the index."""
    name = node_of(pod)
    return (name,) if name else ()


def looks_like_reservation(pod: Object, namespace: str, app_label: str) -> bool:
    """Whether a pod that has a group's label is a reservation.

    A binder with other settings may have made it elsewhere. But outside of the reservations' namespace its
    author may be anybody: only what holds a whole GPU counts, which its spec says for good.

    Args:
        pod: The pod, with its labels and the resources of its containers.
        namespace: Of the reservations.
        app_label: Value of their label `app`.
    """
    metadata = pod["metadata"]
    if metadata["namespace"] == namespace:
        return True
    labelled = (metadata.get("labels") or {}).get("app") == app_label
    limits = [(item.get("resources") or {}).get("limits") or {} for item in pod["spec"]["containers"]]
    whole = any(amounts.get(GPU_RESOURCE) == "1" for amounts in limits)
    return metadata["name"].startswith(NAME_PREFIX) and labelled and whole and not asks_for_share(pod)


def _awaits(item: Object, group: str) -> bool:
    """Whether a request for this group is still to be bound."""
    return group in groups_of_request(item) and not is_over(item)


def _lives_there(item: Object, pod: Object, node_names: Container[str]) -> bool:
    """Whether the pod of a request that has succeeded lives on one of these nodes, so far as it shows."""
    node = node_of(pod) or (item.get("spec") or {}).get("selectedNode")
    return not is_finished(pod) and (not isinstance(node, str) or node in node_names)


class Members:
    """Reads who belongs to a group, from the caches and live.

    Attributes:
        options: What reservation pods look like.
        shard: Whose the reservations are.
    """

    def __init__(
        self, client: Client, caches: GroupCaches, options: ReservationOptions, usage: Usage
    ) -> None:
        self.options = options
        self.shard = caches.shard
        self._client = client
        self._caches = caches
        self._usage = usage

    def requests(self, group: str) -> list[Object]:
        """The requests that name a group."""
        return self._caches.requests.by_index(GROUP_INDEX, group)

    def reservations(self, group: str) -> list[Object]:
        """The reservation pods of a group, whatever has become of them."""
        return self._caches.reservations.by_index(GROUP_INDEX, group)

    def reservations_on(self, node_name: str) -> list[Object]:
        """The reservation pods on a node, of all groups."""
        return self._caches.reservations.by_index(NODE_INDEX, node_name)

    def pod_of(self, item: Object) -> Object | None:
        """The pod that a request was made for, if the cache has it."""
        name = (item.get("spec") or {}).get("podName")
        pod = self._caches.pods.get(str(name), item["metadata"]["namespace"])
        return pod if pod is not None and is_owner(item, pod) else None

    def users(self, group: str) -> list[Object]:
        """The pods that may have a share of the group's GPU on their node, as the cache shows."""
        labelled = self._caches.pods.by_index(GROUP_INDEX, group)
        told = filter(None, map(self.pod_of, self.requests(group)))
        pods = {pod["metadata"]["uid"]: pod for pod in (*labelled, *told)}
        return [pod for pod in pods.values() if self.is_user(pod, group)]

    def is_user(self, pod: Object, group: str, more_requests: Sequence[Object] = ()) -> bool:
        """Whether a pod lives on some node and may have a share of this group's GPU there.

        Args:
            pod: The pod.
            group: The group.
            more_requests: Such as the cache may not have.
        """
        return group in groups_kept(pod, self.requests_for(pod, more_requests), self.options.scheduler_name)

    def has_share(self, pod: Object, group: str, more_requests: Sequence[Object] = ()) -> bool:
        """Whether one that may have a share has it, so that it may be judged by that. As `is_user`."""
        return group in groups_used(pod, self.requests_for(pod, more_requests), self.options.scheduler_name)

    def requests_for(self, pod: Object, more_requests: Sequence[Object] = ()) -> list[Object]:
        """The requests that were made for a pod, by the cache and of those that are given beside it."""
        key = pod_key(*key_of(pod))
        found = self._caches.requests.by_index(POD_INDEX, key)
        found += [item for item in more_requests if key in pods_of_request(item)]
        return [item for item in found if is_owner(item, pod)]

    def protects(self, item: Object, node_names: Container[str]) -> bool:
        """Whether a request keeps its groups on these nodes: its pod lives there, or is to be bound there."""
        if not has_succeeded(item):
            wanted = (item.get("spec") or {}).get("selectedNode")
            return isinstance(wanted, str) and wanted in node_names and not is_over(item)
        pod = self.pod_of(item)
        return pod is not None and _lives_there(item, pod, node_names)

    def is_needed(self, group: str, node_names: Iterable[str]) -> bool:
        """Whether, by the caches, somebody uses or needs the group's reservation on one of these nodes."""
        names = frozenset(node_names)
        return any(self.protects(item, names) for item in self.requests(group)) or any(
            node_of(pod) in names for pod in self.users(group)
        )

    def unneeded(self, node_name: str) -> list[Object]:
        """Reservation pods that hold a GPU of a node, though nobody uses or needs them; none is the rule."""
        if not self._caches.complete:
            return []  # what cannot be seen is not missing
        found = []
        for pod in self.reservations_on(node_name):
            groups = groups_of_pod(pod)
            needed = any(
                self._usage.is_used(group)
                or group in self._usage.needed_live
                or self.is_needed(group, (node_name,))
                for group in groups
            )
            if groups and not needed and not is_finished(pod) and self.shard.shows(pod):
                found.append(pod)
        return found

    def is_reservation(self, pod: Object) -> bool:
        """Whether a pod, as read live, that has a group's label is a reservation."""
        return looks_like_reservation(pod, self.options.namespace, self.options.app_label)

    async def holders(self, group: str, node_names: Collection[str]) -> list[Object]:
        """All pods on these nodes that may go by the group's GPU, by the caches and by live looks.

        A bind that has just ended may be in no cache yet.
        """
        more = await self.shard.requests_on(node_names)
        found = [*await self.users_live(group, node_names, more), *self.users(group)]
        pods = {pod_key(*key_of(pod)): pod for pod in reversed(found) if node_of(pod) in node_names}
        told = [item for item in more if group in groups_of_request(item)]
        missing = [
            item for item in (*self.requests(group), *told) if pods.keys().isdisjoint(pods_of_request(item))
        ]
        for item, pod in await self._pods_live(missing):
            if is_owner(item, pod) and not is_finished(pod) and node_of(pod) in node_names:
                pods[pod_key(*key_of(pod))] = pod
        return list(pods.values())

    async def sharers_everywhere(self, group: str, node_names: Collection[str]) -> list[Object]:
        """Those of the users everywhere who have a share so far as anybody can tell."""
        users = self.users(group)
        if self.shard.pool.is_whole:
            return [pod for pod in users if self.has_share(pod, group)]
        pods = {pod["metadata"]["uid"]: pod for pod in users}
        for pod in await self._labelled(group, node_names):
            pods.setdefault(pod["metadata"]["uid"], pod)
        more = await self.shard.requests_on(node_names) if pods else ()
        return [pod for pod in pods.values() if self.has_share(pod, group, more)]

    async def users_live(
        self, group: str, node_names: Collection[str], more_requests: Sequence[Object] | None = None
    ) -> list[Object]:
        """The users of the group on these nodes, by a live look at pods that have its label.

        `more_requests` are those for these nodes, by a live look; they are read if they are not given.
        """
        pods = await self._labelled(group, node_names)
        if more_requests is None:
            more_requests = await self.shard.requests_on(node_names) if pods else ()
        return [pod for pod in pods if self.is_user(pod, group, more_requests)]

    async def _labelled(self, group: str, node_names: Collection[str]) -> list[Object]:
        """The pods on these nodes that have the group's label, by a live look."""
        pods: list[Object] = []
        for selector in (f"{GROUP_LABEL}={group}", f"{GROUP_LABEL_PREFIX}{group}={group}"):
            query = {"labelSelector": selector}
            if len(node_names) == 1:
                query["fieldSelector"] = f"spec.nodeName={next(iter(node_names))}"
            page = await self._client.list_all(PODS, query)
            pods += [pod for pod in page.items if node_of(pod) in node_names]
        return pods

    async def is_needed_live(self, group: str, node_names: Collection[str]) -> bool:
        """Whether a live look finds somebody who needs the group on these nodes and whom no cache shows."""
        more = await self.shard.requests_on(node_names)
        if any(_awaits(item, group) for item in more) or await self.users_live(group, node_names, more):
            return True
        told = (item for item in more if group in groups_of_request(item))
        pods = await self._pods_live([*filter(has_succeeded, (*self.requests(group), *told))])
        return any(is_owner(item, pod) and _lives_there(item, pod, node_names) for item, pod in pods)

    async def _pods_live(self, items: Iterable[Object]) -> list[tuple[Object, Object]]:
        """Those of these requests whose pods exist, each with the pod of its pod's name, by a live look."""
        by_namespace: defaultdict[str, list[Object]] = defaultdict(list)
        for item in items:
            by_namespace[item["metadata"]["namespace"]].append(item)
        found: list[tuple[Object, Object]] = []
        for namespace, asked in by_namespace.items():
            found += await named_pods(self._client, asked, namespace)
        return found

    async def is_awaited_elsewhere(self, group: str, node_name: str) -> bool:
        """Whether a live look finds a request of another pool for the group that is still to be bound."""
        found = await self.shard.requests_on((node_name,))
        return any(_awaits(item, group) and not self.shard.pool.holds(item) for item in found)

    def standing(self, group: str) -> list[Object]:
        """The living reservation pods of a group that are not about to be removed, by the cache."""
        return [
            pod
            for pod in live(self.reservations(group))
            if not self._usage.was_removed(pod) and not self._usage.is_given_up(pod)
        ]

    async def find(self, group: str, node_name: str) -> Object | None:
        """The living reservation pod of a group that its users on a node go by, or one elsewhere, if any."""
        found = self.standing(group)
        found = [pod for pod in found if node_of(pod) == node_name] or found
        if len(found) <= 1:
            return found[0] if found else None
        users = await self.holders(group, {node_of(pod) for pod in found})
        told = await devices_told(self._client, users)
        return chosen(found, told.devices)[0]

    async def read(self, name: str) -> Object | None:
        """The reservation pod of this name by a live read, if there is one."""
        try:
            return await self._client.get(PODS, name, self.options.namespace)
        except errors.NotFoundError:
            return None

    async def read_again(self, pod: Object) -> Object | None:
        """This very reservation pod by a live read, if there still is one."""
        found = await self.read(pod["metadata"]["name"])
        same = found is not None and found["metadata"]["uid"] == pod["metadata"]["uid"]
        return found if same else None
