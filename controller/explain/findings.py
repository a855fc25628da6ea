"""What the cluster says of a request and its pod, as it was read; nothing is judged here.

`gather` is called by the verb; `facts.py` and `judge.py` read what it returns. Invariant: few requests, each
for what this pod is about, and those that do not depend on each other at once.
"""

from collections.abc import Iterable

import anyio
from msgspec import Struct, field

from controller.explain.options import Options
from controller.explain.reads import Read, Reads
from controller.explain.target import Found
from controller.kai.names import (
    BIND_REQUESTS,
    CLAIM_VERSIONS,
    GROUP_LABEL,
    LEASE_NAME,
    NODES,
    PODS,
    VOLUME_CLAIMS,
)
from controller.kai.nodepool import NODE_POOL_LABEL, lease_name_of
from controller.kai.pods import is_finished
from controller.kai.sharing import groups_of_request, is_group
from controller.runtime.client import Object, Resource

EVENTS = Resource("v1", "events")
LEASES = Resource("coordination.k8s.io/v1", "leases")

_MOST_CLAIMS = 20
"""So many of each kind are looked at."""


class Findings(Struct):
    """What was found.

    Attributes:
        found: The request and its pod.
        node: The chosen node.
        claims: The pod's PersistentVolumeClaims by name.
        device_claims: Its ResourceClaims by name.
        reservations: Reservation pods of the request's groups.
        group_requests: Requests of the same groups, this one too.
        lease: The binder's.
        events: Of all of these, as they come.
    """

    found: Found
    node: Read = field(default_factory=Read)
    claims: dict[str, Read] = field(default_factory=dict)
    device_claims: dict[str, Read] = field(default_factory=dict)
    reservations: Read = field(default_factory=Read)
    group_requests: Read = field(default_factory=Read)
    lease: Read = field(default_factory=Read)
    events: list[Object] = field(default_factory=list)


async def gather(reads: Reads, found: Found, options: Options) -> Findings:
    """Reads what belongs to a request and its pod."""
    gathering = _Gathering(reads, Findings(found), options)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(gathering.read_node)
        tasks.start_soon(gathering.read_group)
        tasks.start_soon(gathering.read_lease)
        for name in sorted(set(claim_names(found.pod.one)))[:_MOST_CLAIMS]:
            tasks.start_soon(gathering.read_claim, name)
        for name in sorted(set(device_claim_names(found.pod.one)))[:_MOST_CLAIMS]:
            tasks.start_soon(gathering.read_device_claim, name)
        for name in found.names:
            tasks.start_soon(gathering.read_events, found.namespace, name)
    return gathering.findings


def claim_names(pod: Object | None) -> Iterable[str]:
    """Names of the PersistentVolumeClaims that a pod uses."""
    for volume in ((pod or {}).get("spec") or {}).get("volumes") or ():
        if "persistentVolumeClaim" in volume:
            yield volume["persistentVolumeClaim"]["claimName"]
        elif pod is not None and "ephemeral" in volume:
            yield f"{pod['metadata']['name']}-{volume['name']}"


def device_claim_names(pod: Object | None) -> Iterable[str]:
    """Names of the ResourceClaims that a pod uses, so far as they have been made."""
    status = (pod or {}).get("status") or {}
    for item in ((pod or {}).get("spec") or {}).get("resourceClaims") or ():
        if item.get("resourceClaimName"):
            yield item["resourceClaimName"]
    for item in status.get("resourceClaimStatuses") or ():
        if item.get("resourceClaimName"):
            yield item["resourceClaimName"]
    extended = (status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName")
    if extended:
        yield extended


class _Gathering:
    """The reads of one explanation, which run side by side."""

    def __init__(self, reads: Reads, findings: Findings, options: Options) -> None:
        self.findings = findings
        self._reads = reads
        self._options = options
        self._namespace = findings.found.namespace
        spec = (findings.found.request or {}).get("spec")
        node = spec.get("selectedNode") if isinstance(spec, dict) else None
        labels = ((findings.found.request or {}).get("metadata") or {}).get("labels") or {}
        self._pool = str(labels.get(NODE_POOL_LABEL) or "")
        pod = findings.found.pod.one or {}
        bound_to = (pod.get("spec") or {}).get("nodeName")
        self._node = str(node or bound_to or "")

    async def read_node(self) -> None:
        if self._node:
            self.findings.node = await self._reads.get(NODES, self._node)

    async def read_lease(self) -> None:
        """Of the binder that serves the request's node pool; else of one that serves them all."""
        namespace = self._options.binder_namespace
        for name in dict.fromkeys((lease_name_of(self._pool), LEASE_NAME)):
            self.findings.lease = await self._reads.get(LEASES, name, namespace)
            if self.findings.lease.one is not None or self.findings.lease.problem:
                return

    async def read_claim(self, name: str) -> None:
        read = await self._reads.get(VOLUME_CLAIMS, name, self._namespace)
        self.findings.claims[name] = read
        if read.one is not None and (read.one.get("status") or {}).get("phase") != "Bound":
            await self.read_events(self._namespace, name)

    async def read_device_claim(self, name: str) -> None:
        read = Read()
        for version in CLAIM_VERSIONS:
            kind = Resource(f"resource.k8s.io/{version}", "resourceclaims")
            read = await self._reads.get(kind, name, self._namespace, may_be_unknown=True)
            if read.one is not None or not read.is_unknown_kind:
                break
        self.findings.device_claims[name] = read
        if read.is_unknown_kind:
            self._reads.note("cannot read resourceclaims: the API server does not know this kind")

    async def read_group(self) -> None:
        """Reservations of the groups, and the requests that are for the same ones."""
        request = self.findings.found.request
        groups = sorted(filter(is_group, groups_of_request(request))) if request is not None else []
        if not groups:
            return
        namespace = self._options.reservation_namespace
        selector = {"labelSelector": f"{GROUP_LABEL} in ({','.join(groups)})"}
        self.findings.reservations = await self._reads.find(PODS, namespace, params=selector)
        wanted = frozenset(groups)

        def keep(item: Object) -> Object | None:
            return item if wanted & groups_of_request(item) else None

        # The scheduler labels its requests with the node, and a group is of one node.
        label = {"labelSelector": f"selected-node={self._node}"} if is_group(self._node) else {}
        self.findings.group_requests = await self._reads.find(BIND_REQUESTS, params=label, keep=keep)
        if self.findings.group_requests.problem:
            own = [item for item in self.findings.found.requests if keep(item)]
            self.findings.group_requests = Read(tuple(own), self.findings.group_requests.problem)
        for pod in self.findings.reservations.items:
            if is_finished(pod) or (pod.get("status") or {}).get("phase") != "Running":
                await self.read_events(namespace, pod["metadata"]["name"])

    async def read_events(self, namespace: str, name: str) -> None:
        selector = {"fieldSelector": f"involvedObject.name={name}"}
        self.findings.events += (await self._reads.find(EVENTS, namespace, params=selector)).items
