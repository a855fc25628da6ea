"""One attempt to have a pod's claims bound to volumes that its node can reach; for volumebinding.

Claims that wait for their first consumer are given a free volume, or are handed to their provisioner, the
way kube-scheduler does it, since the volume controllers act on what it writes. Invariant: everything is
decided by live reads and written under a resourceVersion, so an attempt that was broken off is found done.
"""

from collections import Counter
from collections.abc import Iterator

import anyio

from controller.kai.names import STORAGE_CLASSES, VOLUME_CLAIMS, VOLUMES
from controller.kai.reasons import Reason
from controller.kai.selectors import node_affinity_text, node_allowed
from controller.plugins.base import BindContext, Failed, Outcome, Ready
from controller.plugins.volumes.matching import (
    BOUND_BY_CONTROLLER,
    NO_PROVISIONER,
    SELECTED_NODE,
    Claim,
    choose,
    class_name,
    obstacle,
    owned_by,
    tied_to,
)
from controller.plugins.volumes.provisioning import why_not_provisioned
from controller.plugins.volumes.waiting import Leg, unreachable, until_bound
from controller.runtime import errors
from controller.runtime.client import Client, Object

_TRY_DELAYS_S = (0.0, 0.05, 0.1, 0.2, 0.4)
"""Before each try of an attempt: a write that meets a conflict is decided anew."""


class Holds:
    """Keys that attempts of this process hold, each for one purpose; several may share one."""

    def __init__(self) -> None:
        self.purposes: dict[str, str] = {}
        self._holders: Counter[str] = Counter()

    def take(self, key: str, purpose: str) -> bool:
        """Takes a key, unless it is held for another purpose."""
        if self.purposes.setdefault(key, purpose) != purpose:
            return False
        self._holders[key] += 1
        return True

    def release(self, key: str) -> None:
        """Takes back one `take`."""
        self._holders[key] -= 1
        if not self._holders[key]:
            del self._holders[key], self.purposes[key]


class Attempt:
    """One call of the plugin.

    `run` once, and `release` at the end.
    """

    def __init__(self, client: Client, context: BindContext, volumes: Holds, claims: Holds) -> None:
        self._client = client
        self._context = context
        self._node = context.node
        self._node_name = context.request.node_name
        self._volumes = volumes
        self._claims = claims
        self._held: list[tuple[Holds, str]] = []
        self._legs: list[Leg] = []

    async def run(self, timeout_s: float) -> Outcome:
        """Does the work, waiting at most `timeout_s` for others to do theirs."""
        failure = await self._decide_and_write() or await self._wait(timeout_s)
        if failure is not None:
            return Failed(failure.reason, self.with_ties(failure.message), failure.retry)
        return Ready(f"bound: {', '.join(leg.end_text() for leg in self._legs)}")

    def release(self) -> None:
        """Lets others have what this attempt holds."""
        while self._held:
            holds, key = self._held.pop()
            holds.release(key)

    def with_ties(self, message: str) -> str:
        """The message of a failure, with what stays tied to a node after it."""
        legs = [leg for leg in self._legs if not leg.lost]
        tied = [text for leg in legs if (text := leg.tie_text())]
        if not tied:
            return message
        loose = [f"claim {leg.claim.name} is not tied to a node" for leg in legs if not leg.tie_text()]
        return "; ".join((message, *tied, *loose))

    async def _decide_and_write(self) -> Failed | None:
        failure = None
        for delay_s in _TRY_DELAYS_S:
            await anyio.sleep(delay_s)
            failure = await self._decide()
            if failure is not None:
                return failure
            failure = await self._write()
            if failure is None:
                return None
        return failure

    async def _decide(self) -> Failed | None:
        """Reads all claims, and finds for each that is not bound how it can be."""
        self.release()
        self._legs = []
        for name, ephemeral in dict(claim_names(self._context.pod)).items():
            claim = await self._read_claim(name, ephemeral=ephemeral)
            if isinstance(claim, Failed):
                return claim
            self._legs.append(Leg(claim))
        classes: dict[str, Object] = {}
        for leg in self._legs:
            if leg.claim.bound:
                failure = await self._check_volume(leg)
            else:
                failure = await self._check_class(leg, classes)
            if failure is not None:
                return failure
        waiting = [leg for leg in self._legs if not leg.claim.bound]
        return self._hold_claims(waiting) or await self._match(waiting, classes)

    async def _read_claim(self, name: str, *, ephemeral: bool) -> Claim | Failed:
        """A claim that may be used."""
        namespace, pod = self._context.request.namespace, self._context.pod["metadata"]
        try:
            claim = Claim(await self._client.get(VOLUME_CLAIMS, name, namespace))
        except errors.NotFoundError:
            hint = ", which the ephemeral volume controller has to make" if ephemeral else ""
            return Failed(Reason.CLAIM_NOT_FOUND, f"claim {namespace}/{name}{hint} does not exist")
        owners = claim.item["metadata"].get("ownerReferences") or ()
        if ephemeral and not any(o["uid"] == pod["uid"] and o.get("controller") for o in owners):
            text = f"claim {claim.name} has the name of an ephemeral volume of pod {pod['name']}, but was not"
            return Failed(Reason.CLAIM_NOT_OWNED, f"{text} made for this pod (uid {pod['uid']})")
        if claim.deleted:
            return Failed(Reason.CLAIM_TERMINATING, f"claim {claim.name} is being deleted")
        if (claim.item.get("status") or {}).get("phase") == "Lost":
            text = f"claim {claim.name} has lost volume {claim.volume_name}, which it was bound to"
            return Failed(Reason.CLAIM_UNBOUND, text)
        return claim

    async def _check_volume(self, leg: Leg) -> Failed | None:
        """Whether the volume that a claim is bound to can be used."""
        claim = leg.claim
        try:
            leg.volume = await self._client.get(VOLUMES, claim.volume_name)
        except errors.NotFoundError:
            text = f"claim {claim.name} is bound to volume {claim.volume_name}, which does not exist"
            return Failed(Reason.VOLUME_NOT_FOUND, text)
        if node_allowed(leg.volume, self._node):
            return None
        return unreachable(leg.volume, claim, self._node)

    async def _check_class(self, leg: Leg, classes: dict[str, Object]) -> Failed | None:
        """Whether an unbound claim is for us to have bound."""
        claim, name = leg.claim, leg.claim.class_name
        problem = None
        if name and name not in classes:
            try:
                classes[name] = await self._client.get(STORAGE_CLASSES, name)
            except errors.NotFoundError:
                problem = f"its class {name} does not exist"
        if not name:
            problem = "it has no storage class that would have it wait for a pod"
        elif problem is None and classes[name].get("volumeBindingMode") != "WaitForFirstConsumer":
            problem = f"its class {name} does not have it wait for a pod (volumeBindingMode Immediate)"
        elif claim.volume_name:
            problem = f"it names volume {claim.volume_name} itself (class {name})"
        if problem is not None:
            text = f"claim {claim.name} is not bound, and only the volume controller can bind it"
            return Failed(Reason.CLAIM_UNBOUND, f"{text}: {problem}")
        leg.provisioner = classes[name]["provisioner"]
        return None

    def _hold_claims(self, legs: list[Leg]) -> Failed | None:
        """Keeps two pods that share a claim from pulling it to two nodes in turn."""
        for leg in legs:
            uid = leg.claim.uid
            if not self._claims.take(uid, self._node_name):
                rival = self._claims.purposes[uid]
                text = f"claim {leg.claim.name} is being bound for node {rival} by another request"
                return Failed(Reason.CONFLICT, f"{text}, and cannot be for {self._node_name} as well")
            self._held.append((self._claims, uid))
        return None

    async def _match(self, legs: list[Leg], classes: dict[str, Object]) -> Failed | None:
        """Finds a volume or a provisioner for each claim; the smallest claim chooses first."""
        # One that is being provisioned, perhaps for another node, is not given a volume as well.
        choosing = [leg for leg in legs if not leg.claim.selected_node or leg.provisioner == NO_PROVISIONER]
        volumes = await self._free_volumes(choosing) if choosing else []
        for leg in sorted(legs, key=lambda leg: leg.claim.size):
            found: Object | Failed | str = ""
            if leg in choosing:
                found = self._pick(leg.claim, volumes)
            if isinstance(found, str):
                found = await self._cannot_provision(leg, classes, found) or {}
            if isinstance(found, Failed):
                return found
            leg.volume = found or None
        return None

    async def _free_volumes(self, legs: list[Leg]) -> list[Object]:
        """The volumes that may be for these claims: of their classes, or tied to them already."""
        classes = {leg.claim.class_name for leg in legs}

        def keep(volume: Object) -> Object | None:
            wanted = class_name(volume) in classes or any(tied_to(volume, leg.claim) for leg in legs)
            return volume if wanted else None

        return (await self._client.list_all(VOLUMES, keep=keep)).items

    def _pick(self, claim: Claim, volumes: list[Object]) -> Object | Failed | str:
        """The volume for a claim, held for it; or why there is none, or none can be."""
        tied = next((volume for volume in volumes if tied_to(volume, claim)), None)
        if tied is not None:
            problem = obstacle(tied, claim, self._node)
            if problem is None:
                return tied
            text = (
                f"volume {tied['metadata']['name']} is tied to claim {claim.name} (class {claim.class_name}),"
            )
            affinity = node_affinity_text(tied)
            hint = f"; its node affinity asks for {affinity}" if affinity else ""
            text = f"{text} but cannot serve it on node {self._node_name}: it is {problem}{hint}"
            return Failed(Reason.VOLUME_UNREACHABLE, text)
        chosen = choose(volumes, claim, self._node, self._volumes.purposes)
        if not isinstance(chosen, str):
            name = chosen["metadata"]["name"]
            self._volumes.take(name, claim.uid)  # no await since it was chosen: nobody was faster
            self._held.append((self._volumes, name))
        return chosen

    async def _cannot_provision(self, leg: Leg, classes: dict[str, Object], why: str) -> Failed | None:
        """Why a claim, for which no volume will do (`why`), cannot have one made on the node either."""
        claim, storage_class = leg.claim, classes[leg.claim.class_name]
        problem = await why_not_provisioned(self._client, claim, storage_class, self._node)
        if problem is None:
            return None
        text = (
            f"there is no volume for claim {claim.name} (class {claim.class_name}) on node {self._node_name}"
        )
        reasons = f"of the volumes of its class, {why}; {problem}" if why else problem
        return Failed(Reason.NO_FITTING_VOLUME, f"{text}: {reasons}")

    async def _write(self) -> Failed | None:
        """Writes what is decided and not written yet; Failed if it has to be decided anew."""
        # As kube-scheduler does: first the volumes, which can fail, then what sets provisioners to work.
        for leg in sorted(self._legs, key=lambda leg: leg.volume is None):
            if leg.claim.bound:
                continue
            what = f"asking {leg.awaits(self._node_name)}"
            try:
                await self._tie(leg)
            except (errors.ConflictError, errors.NotFoundError) as error:
                return Failed(Reason.CONFLICT, f"{what} was given up after conflicts: {error.message}")
            except errors.ApiError as error:
                error.message = f"{what}: {error.message}"
                raise
        return None

    async def _tie(self, leg: Leg) -> None:
        claim, volume = leg.claim.item["metadata"], leg.volume
        if volume is not None and not owned_by(volume, leg.claim):
            metadata: Object = {"resourceVersion": volume["metadata"]["resourceVersion"]}
            if volume["spec"].get("claimRef") is None:
                metadata["annotations"] = {BOUND_BY_CONTROLLER: "yes"}  # whoever tied it before us, unties it
            kept = {key: claim[key] for key in ("namespace", "name", "uid", "resourceVersion")}
            reference = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **kept}
            body: Object = {"metadata": metadata, "spec": {"claimRef": reference}}
            leg.volume = await self._client.patch(VOLUMES, volume["metadata"]["name"], body)
        elif volume is None and leg.claim.selected_node != self._node_name:
            annotations = {SELECTED_NODE: self._node_name}
            body = {"metadata": {"resourceVersion": claim["resourceVersion"], "annotations": annotations}}
            answer = await self._client.patch(VOLUME_CLAIMS, claim["name"], body, claim["namespace"])
            leg.claim = Claim(answer)

    async def _wait(self, timeout_s: float) -> Failed | None:
        waiting = [leg for leg in self._legs if not leg.claim.bound]
        if not waiting:
            return None
        failure = await until_bound(self._client, self._context, waiting, timeout_s)
        if failure is not None:
            return failure
        for leg in waiting:
            # One that we have chosen was judged already.
            if leg.volume is None or leg.volume["metadata"]["name"] != leg.claim.volume_name:
                failure = failure or await self._check_volume(leg)
        return failure


def claim_names(pod: Object) -> Iterator[tuple[str, bool]]:
    """Names of the pod's claims, and whether each is a generic ephemeral volume's."""
    for volume in pod["spec"].get("volumes") or ():
        if "persistentVolumeClaim" in volume:
            yield volume["persistentVolumeClaim"]["claimName"], False
        elif "ephemeral" in volume:
            yield f"{pod['metadata']['name']}-{volume['name']}", True
