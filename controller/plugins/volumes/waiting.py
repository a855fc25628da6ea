"""Waiting until the volume controller has bound claims, or until it is clear that it will not.

Used by the plugin volumebinding. Each claim is followed by a watch. What else can end the wait (request,
pod, node and chosen volumes) is followed only once it has lasted a while, since most waits are over at
once. Invariant: every cause ends the wait within a second or two, not only at its time limit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio
from anyio.abc import TaskGroup

from controller.kai.names import BIND_REQUESTS, NODES, PODS, VOLUME_CLAIMS, VOLUMES
from controller.kai.reasons import Reason
from controller.kai.request import BindRequest
from controller.kai.selectors import node_affinity_text, node_allowed
from controller.plugins.base import BindContext, Failed, Ready
from controller.plugins.volumes.matching import Claim, owned_by
from controller.runtime import errors
from controller.runtime.changes import Judged, Target
from controller.runtime.client import Client, Object

_GUARDED_AFTER_S = 1.0

Judge = Callable[[Object | None], Ready | Failed | None]
"""Gets an object as it is now, or None; says how the wait for it ended, or None to go on."""


@dataclass(slots=True)
class Leg:
    """One claim of the pod, and what is known of it and its volume; kept up to date.

    Attributes:
        claim: The claim as last seen.
        volume: The volume that it is bound to, or that was chosen for it; None if one is to be provisioned.
        provisioner: Of its storage class, if it was not bound.
        lost: Whether the claim, or the volume chosen for it, is there no more.
    """

    claim: Claim
    volume: Object | None = None
    provisioner: str = ""
    lost: bool = False

    def awaits(self, node_name: str) -> str:
        """Who is to do what, in words."""
        claim = f"claim {self.claim.name} (class {self.claim.class_name})"
        if self.volume is not None:
            return f"the volume controller to bind {claim} to volume {self.volume['metadata']['name']}"
        return f"provisioner {self.provisioner} to make a volume for {claim} on node {node_name}"

    def end_text(self) -> str:
        """What it is bound to, in the end."""
        affinity = node_affinity_text(self.volume) if self.volume is not None else ""
        text = f"{self.claim.item['metadata']['name']} to {self.claim.volume_name}"
        return f"{text} (for {affinity})" if affinity else text

    def tie_text(self) -> str:
        """Which nodes it is tied to, and by what; empty if to none."""
        claim, volume = self.claim, self.volume
        if volume is not None and (claim.bound or owned_by(volume, claim)):
            affinity = node_affinity_text(volume)
            text = f"claim {claim.name} is tied to volume {volume['metadata']['name']}"
            return f"{text} and so to {affinity}" if affinity else ""
        if claim.selected_node and not claim.bound:
            return f"claim {claim.name} is marked to be provisioned on node {claim.selected_node}"
        return ""


async def until_bound(
    client: Client, context: BindContext, legs: Sequence[Leg], timeout_s: float
) -> Failed | None:
    """Waits until all claims are bound.

    Args:
        client: For the requests.
        context: Of the attempt.
        legs: The claims that are not bound, as read or as answered to our own writes.
        timeout_s: Seconds until it gives up.

    Returns:
        Why it is no use to wait any longer; None if all are bound.
    """
    wait = _Wait(client, context, legs)
    node_name = context.request.node_name
    async with context.waiting("; ".join(leg.awaits(node_name) for leg in legs)):
        with anyio.move_on_after(timeout_s):
            await wait.run()
    if wait.error is not None:
        raise wait.error  # here, where no task group wraps it
    missing = "; ".join(leg.awaits(node_name) for leg in legs if not leg.claim.bound)
    if wait.failure is None and missing:
        return Failed(Reason.BIND_TIMEOUT, f"waited {timeout_s:g} s in vain for {missing}")
    return wait.failure


class _Wait:
    """The followers of one wait; the first that has bad news ends them all."""

    def __init__(self, client: Client, context: BindContext, legs: Sequence[Leg]) -> None:
        self.failure: Failed | None = None
        self.error: errors.ApiError | None = None
        self._client = client
        self._context = context
        self._legs = legs
        self._node = context.node

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            for leg in self._legs:
                tasks.start_soon(self._claim, leg, tasks.cancel_scope)
            tasks.start_soon(self._guard, tasks)

    async def _claim(self, leg: Leg, scope: anyio.CancelScope) -> None:
        metadata = leg.claim.item["metadata"]
        name, namespace, version = metadata["name"], metadata["namespace"], metadata["resourceVersion"]
        target = Target(VOLUME_CLAIMS, name, namespace, version)
        node_name = self._context.request.node_name
        await self._follow(target, lambda found: judge_claim(leg, found, node_name), scope)
        if all(leg.claim.bound for leg in self._legs):
            scope.cancel()

    async def _guard(self, tasks: TaskGroup) -> None:
        """Looks after all that the wait depends on, but for the claims."""
        await anyio.sleep(_GUARDED_AFTER_S)
        request, pod, node = self._context.request, self._context.pod, self._context.node
        pod_version, node_version = pod["metadata"]["resourceVersion"], node["metadata"]["resourceVersion"]
        guards: list[tuple[Target, Judge]] = [
            (
                Target(BIND_REQUESTS, request.name, request.namespace),
                lambda found: judge_request(request, found),
            ),
            (
                Target(PODS, request.pod_name, request.namespace, pod_version),
                lambda found: judge_pod(request, pod, found),
            ),
            (Target(NODES, request.node_name, version=node_version), self._judge_node),
        ]
        guards += [self._volume_guard(leg, leg.volume) for leg in self._legs if leg.volume is not None]
        for target, judge in guards:
            tasks.start_soon(self._follow, target, judge, tasks.cancel_scope)

    def _volume_guard(self, leg: Leg, volume: Object) -> tuple[Target, Judge]:
        metadata = volume["metadata"]
        target = Target(VOLUMES, metadata["name"], version=metadata["resourceVersion"])
        return target, lambda found: judge_volume(leg, found, self._node)

    def _judge_node(self, found: Object | None) -> Failed | None:
        name = self._context.request.node_name
        if found is None:
            return Failed(Reason.NODE_GONE, f"node {name} was deleted while its volumes were being bound")
        self._node = found
        for leg in self._legs:
            if leg.volume is not None and not node_allowed(leg.volume, found):
                return unreachable(leg.volume, leg.claim, found)
        return None

    async def _follow(self, target: Target, judge: Judge, scope: anyio.CancelScope) -> None:
        """Follows until there is a verdict; a bad one, or an error, ends the wait."""
        try:
            verdict = await self._context.changes.until(Judged(target, judge))
        except errors.ApiError as error:
            self.error = error
            scope.cancel()
            return
        if isinstance(verdict, Failed):
            self.failure = self.failure or verdict
            scope.cancel()


def judge_claim(leg: Leg, found: Object | None, node_name: str) -> Ready | Failed | None:
    """Ready if the claim is bound, Failed if it will not be, None if it may become so yet."""
    claim = leg.claim
    if found is None:
        leg.lost = True
        return Failed(Reason.CLAIM_NOT_FOUND, f"claim {claim.name} was deleted while it was being bound")
    now = Claim(found)
    if now.uid != claim.uid:
        leg.lost = True
        text = f"claim {claim.name} was deleted and made anew while it was being bound"
        return Failed(Reason.CLAIM_REPLACED, f"{text}: its uid was {claim.uid} and is {now.uid}")
    leg.claim = now
    if now.deleted:
        return Failed(Reason.CLAIM_TERMINATING, f"claim {claim.name} is being deleted")
    if now.bound:
        return Ready()
    if leg.volume is not None or now.selected_node == node_name:
        return None
    change = f"was changed to {now.selected_node}" if now.selected_node else "was taken off the claim"
    return Failed(
        Reason.PROVISIONING_REFUSED,
        f"provisioning refused node {node_name} for claim {claim.name} (class {claim.class_name}, "
        f"provisioner {leg.provisioner}): the node {change} again",
    )


def judge_request(request: BindRequest, found: Object | None) -> Failed | None:
    """Failed if the request is no more."""
    gone = found is None or found["metadata"]["uid"] != request.uid
    if gone or (found is not None and found["metadata"].get("deletionTimestamp")):
        text = f"request {request.namespace}/{request.name} was deleted"
        return Failed(Reason.REQUEST_DELETED, text, retry=False)
    return None


def judge_pod(request: BindRequest, pod: Object, found: Object | None) -> Failed | None:
    """Failed if the pod needs its volumes no longer."""
    name = f"{request.namespace}/{request.pod_name}"
    if found is None:
        text = f"pod {name} was deleted while its volumes were being bound"
        return Failed(Reason.POD_NOT_FOUND, text, retry=False)
    metadata, node_name = found["metadata"], found["spec"].get("nodeName")
    phase = (found.get("status") or {}).get("phase")
    if metadata["uid"] != pod["metadata"]["uid"]:
        text = f"pod {name} was deleted and made anew while its volumes were being bound"
        return Failed(Reason.POD_REPLACED, text, retry=False)
    if metadata.get("deletionTimestamp"):
        return Failed(Reason.POD_TERMINATING, f"pod {name} is being deleted", retry=False)
    if phase in ("Succeeded", "Failed"):
        return Failed(Reason.POD_FINISHED, f"pod {name} has ended: its phase is {phase}", retry=False)
    if node_name and node_name != request.node_name:
        text = f"pod {name} is on node {node_name} already, not on {request.node_name}"
        return Failed(Reason.ALREADY_BOUND_ELSEWHERE, text, retry=False)
    return None


def judge_volume(leg: Leg, found: Object | None, node: Object) -> Failed | None:
    """Failed if the chosen volume can no longer become the claim's."""
    claim, volume = leg.claim, leg.volume
    assert volume is not None  # noqa: S101 -- asked only for a chosen one
    text = f"volume {volume['metadata']['name']}, chosen for claim {claim.name} (class {claim.class_name}),"
    if found is None or found["metadata"]["uid"] != volume["metadata"]["uid"]:
        leg.lost = True
        return Failed(Reason.VOLUME_NOT_FOUND, f"{text} was deleted before it was bound")
    leg.volume = found
    if found["metadata"].get("deletionTimestamp"):
        return Failed(Reason.VOLUME_NOT_FOUND, f"{text} is being deleted")
    if not owned_by(found, claim):
        return Failed(Reason.VOLUME_TAKEN, f"{text} was taken from it: its claimRef was cleared or changed")
    return None if node_allowed(found, node) else unreachable(found, claim, node)


def unreachable(volume: Object, claim: Claim, node: Object) -> Failed:
    """The failure of a volume that the node may not use."""
    name, node_name = volume["metadata"]["name"], node["metadata"]["name"]
    text = f"volume {name} of claim {claim.name} (class {claim.class_name or 'none'}) cannot be used on node"
    return Failed(
        Reason.VOLUME_UNREACHABLE,
        f"{text} {node_name}: its node affinity asks for {node_affinity_text(volume)}",
    )
