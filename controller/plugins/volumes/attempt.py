"""One attempt to have a pod's claims bound to volumes that its node can reach; for volumebinding.

Claims that wait for their first consumer are given a free volume, or are handed to their provisioner, the
way kube-scheduler does it, since the volume controllers act on what it writes. Claims that others are having
bound are waited for. Invariant: what is written, or would end the attempt, is decided by reads of its own and
written under a resourceVersion, so an attempt that was broken off is found done.
"""

from collections import Counter

import anyio
from msgspec import Struct
from msgspec.structs import replace

from controller.kai.names import VOLUME_CLAIMS, VOLUMES
from controller.kai.outcome import WaitEndedError
from controller.kai.reasons import Reason
from controller.plugins.base import BindContext, Failed, Outcome, Ready
from controller.plugins.volumes.holds import Holds
from controller.plugins.volumes.inspection import Inspection
from controller.plugins.volumes.leg import Leg
from controller.plugins.volumes.matching import OUT_OF_REACH, choose, obstacle, sum_up
from controller.plugins.volumes.model import SELECTED_NODE, Claim, Volume
from controller.plugins.volumes.provisioning import provisioning_problem
from controller.plugins.volumes.reads import Reads, VolumeList
from controller.plugins.volumes.waiting import Verdict, Wait
from controller.runtime import errors
from controller.runtime.client import Client, Object

BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"

_TRY_DELAYS_S = (0.0, 0.05, 0.1, 0.2, 0.4)
"""Before each try of an attempt: a write that meets a conflict is decided anew."""


class Common(Struct, frozen=True):
    """What all attempts of a process share.

    Attributes:
        client: For writes.
        reads: For reads.
        volumes: Names of volumes, each held for the uid of the claim that it is promised to.
        claims: Uids of claims, each held for the node that it is being bound for.
    """

    client: Client
    reads: Reads
    volumes: Holds
    claims: Holds


class Attempt:
    """One call of the plugin.

    `run` once, and `release` at the end.
    """

    def __init__(self, common: Common, context: BindContext, inspection: Inspection, began_s: float) -> None:
        """Makes it.

        Args:
            common: What all attempts share.
            context: Of the attempt.
            inspection: Of the pod's claims; may have looked at them already.
            began_s: When the attempt began, by anyio's clock.
        """
        self._common = common
        self._context = context
        self._inspection = inspection
        self._node_name = context.request.node_name
        self._since_s = began_s
        self._held: list[tuple[Holds, str]] = []

    async def run(self, timeout_s: float) -> Outcome:
        """Does the work, waiting at most `timeout_s` for others to do theirs."""
        try:
            failure = await self._bind_all(timeout_s)
        except WaitEndedError as ended:
            if isinstance(ended.verdict, Failed):
                raise WaitEndedError(self.with_ties(ended.verdict)) from ended
            raise
        if failure is not None:
            return self.with_ties(failure)
        return Ready(f"bound: {', '.join(leg.end_text() for leg in self._inspection.legs.values())}")

    def release(self) -> None:
        """Lets others have what this attempt holds."""
        while self._held:
            holds, key = self._held.pop()
            holds.release(key)

    def with_ties(self, failure: Failed) -> Failed:
        """A failure, whose message also says what stays tied to a node after it."""
        legs = [leg for leg in self._inspection.legs.values() if not leg.lost]
        tied = [text for leg in legs if (text := leg.tie_text())]
        if not tied:
            return failure
        loose = [f"claim {leg.claim.name} is not tied to a node" for leg in legs if not leg.tie_text()]
        return replace(failure, message="; ".join((failure.message, *tied, *loose)))

    async def _bind_all(self, timeout_s: float) -> Failed | None:
        deadline_s = anyio.current_time() + timeout_s
        while True:
            failure = await self._decide_and_write()
            if failure is not None or not self._inspection.open:
                return failure
            verdict = await self._wait(deadline_s)
            if isinstance(verdict, Failed):
                return verdict
            self._since_s = anyio.current_time()
            failure = await self._inspection.settle(self._since_s)
            if failure is not None or not self._inspection.open:
                return failure
            if verdict is None:
                return self._out_of_time(timeout_s)

    async def _wait(self, deadline_s: float) -> Verdict | None:
        """Waits for the claims that are not bound; None if there was no time left."""
        legs = self._inspection.open
        # What others do comes first: nothing is tied to this node before it is known where theirs will be.
        legs = [leg for leg in legs if leg.others] or legs
        verdict: Verdict | None = None
        wait = Wait(self._context, legs, self._inspection.place, self._common.claims)
        async with self._context.waiting("; ".join(leg.awaits(self._node_name) for leg in legs)):
            with anyio.move_on_after(deadline_s - anyio.current_time()):
                verdict = await wait.run()
        return verdict

    def _out_of_time(self, timeout_s: float) -> Failed:
        missing = "; ".join(leg.awaits(self._node_name) for leg in self._inspection.open)
        return Failed(Reason.BIND_TIMEOUT, f"waited {timeout_s:g} s in vain for {missing}")

    async def _decide_and_write(self) -> Failed | None:
        failure = await self._inspection.look(None)
        if failure is None and not self._inspection.open:
            return None
        # Before anything is written, or ends the attempt, it is read for this attempt.
        look_s, list_s = self._since_s, None
        for delay_s in _TRY_DELAYS_S:
            if delay_s:
                await anyio.sleep(delay_s)
                look_s = list_s = anyio.current_time()
            failure = await self._inspection.look(look_s)
            if failure is not None or not self._inspection.open:
                return failure
            failure = await self._plan(list_s)
            if list_s is None and (failure is not None or self._provisions):
                failure = await self._plan(look_s)  # there may be a volume that a list of before has not
            if failure is not None:
                return failure
            failure = await self._write()
            if failure is None:
                return None
        return failure

    @property
    def _provisions(self) -> bool:
        """Whether a volume is to be made that nobody has asked for yet."""
        return any(
            leg.volume is None and not leg.others and leg.claim.selected_node != self._node_name
            for leg in self._inspection.open
        )

    async def _plan(self, list_s: float | None) -> Failed | None:
        """Finds for each claim that is not bound how it can be; `list_s` as for the list of volumes."""
        self.release()
        legs = self._inspection.open
        for leg in legs:
            leg.volume, leg.rival, leg.rival_is_ours = None, "", False
        await self._find_rivals([leg for leg in legs if not leg.others])
        if any(leg.others for leg in legs):
            self.release()
            return None
        return await self._match(legs, list_s)

    async def _find_rivals(self, legs: list[Leg]) -> None:
        """Keeps two pods that share a claim from pulling it to two nodes in turn."""
        for leg in legs:  # without an await: of two pods that share two claims one gets both
            uid = leg.claim.uid
            if self._common.claims.take(uid, self._node_name):
                self._held.append((self._common.claims, uid))
            else:
                leg.rival, leg.rival_is_ours = self._common.claims.purposes[uid], True
        for leg in legs:
            node = leg.claim.selected_node
            if leg.rival or not leg.provisioner or node in ("", self._node_name):
                continue
            # A volume may be in the making for that node, unless it is gone.
            if await self._common.reads.node_exists(node, self._since_s):
                leg.rival = node

    async def _match(self, legs: list[Leg], list_s: float | None) -> Failed | None:
        """Finds a volume or a provisioner for each claim; the smallest claim chooses first."""
        # One that is being provisioned, perhaps for a node that is gone, is not given a volume as well.
        choosing = [leg for leg in legs if not leg.claim.selected_node or not leg.provisioner]
        volumes = await self._common.reads.volumes(list_s) if choosing else VolumeList()
        for leg in sorted(legs, key=lambda leg: leg.claim.size):
            why = ""
            if leg in choosing:
                found = await self._pick(leg.claim, volumes)
                if isinstance(found, Volume):
                    leg.volume = found
                    continue
                if isinstance(found, Failed):
                    return found
                why = f"of the volumes of its class, {sum_up(found)}; "
            elif leg.claim.selected_node == self._node_name:
                continue  # on its way: it may have taken the last room already
            failure = await self._cannot_provision(leg, why, list_s)
            if failure is not None:
                return failure
        return None

    async def _pick(self, claim: Claim, volumes: VolumeList) -> Volume | Failed | Counter[str]:
        """The volume for a claim, held for it; or why none can be, or how many do not do."""
        kept = volumes.kept_for(claim)
        if name := volumes.bound_to(claim):
            bound = await self._common.reads.volume(name, self._since_s)
            kept += [bound] if bound is not None and bound.owned_by(claim) else []
        free = volumes.free(claim.class_name)
        await self._inspection.know_place([*kept, *free])
        place = self._inspection.place
        unfit: list[tuple[Volume, str]] = []
        for volume in kept:
            problem = obstacle(volume, claim, place)
            if problem is None:
                return volume
            unfit.append((volume, problem))
        for volume, problem in unfit:
            if problem == OUT_OF_REACH:
                return self._tied_elsewhere(volume, claim)
        chosen = choose(free, claim, place, self._common.volumes.purposes)
        if isinstance(chosen, Volume):
            self._common.volumes.take(
                chosen.name, claim.uid
            )  # no await since it was chosen: nobody was faster
            self._held.append((self._common.volumes, chosen.name))
            return chosen
        own = {volume.name for volume, _ in unfit if volume.class_name == claim.class_name}
        chosen["taken"] += volumes.claimed(claim.class_name) - len(own)
        chosen.update(f"tied to the claim but {problem}" for _, problem in unfit)
        return chosen

    def _tied_elsewhere(self, volume: Volume, claim: Claim) -> Failed:
        text = (
            f"volume {volume.name} is tied to claim {claim.name} (class {claim.class_name}), but cannot serve"
        )
        hint = f"its node affinity asks for {self._inspection.place.demands(volume)}"
        text = f"{text} it on node {self._node_name}: it is {OUT_OF_REACH}; {hint}"
        return Failed(Reason.VOLUME_UNREACHABLE, text)

    async def _cannot_provision(self, leg: Leg, why: str, not_before_s: float | None) -> Failed | None:
        """Why a claim, for which no volume will do, cannot have one made on the node either."""
        claim = leg.claim
        problem = await provisioning_problem(
            self._common.reads,
            claim,
            self._inspection.classes[claim.class_name],
            self._inspection.place,
            not_before_s,
        )
        if problem is None:
            return None
        text = f"there is no volume for claim {claim.name} (class {claim.class_name})"
        return Failed(Reason.NO_FITTING_VOLUME, f"{text} on node {self._node_name}: {why}{problem}")

    async def _write(self) -> Failed | None:
        """Writes what is decided and not written yet; Failed if it has to be decided anew."""
        legs = self._inspection.open
        if any(leg.others for leg in legs):
            return None
        # As kube-scheduler does: first the volumes, which can fail, then what sets provisioners to work.
        for leg in sorted(legs, key=lambda leg: leg.volume is None):
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
        claim, volume = leg.claim, leg.volume
        if volume is not None and not volume.owned_by(claim):
            metadata: Object = {"resourceVersion": volume.version}
            if volume.claim is None:
                metadata["annotations"] = {BOUND_BY_CONTROLLER: "yes"}  # whoever tied it before us, unties it
            reference = {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": claim.namespace,
                "name": claim.short_name,
                "uid": claim.uid,
                "resourceVersion": claim.version,
            }
            body: Object = {"metadata": metadata, "spec": {"claimRef": reference}}
            leg.volume = Volume.of(await self._common.client.patch(VOLUMES, volume.name, body))
            self._common.reads.wrote_volume(leg.volume)
        elif volume is None and claim.selected_node != self._node_name:
            annotations = {SELECTED_NODE: self._node_name}
            body = {"metadata": {"resourceVersion": claim.version, "annotations": annotations}}
            answer = await self._common.client.patch(VOLUME_CLAIMS, claim.short_name, body, claim.namespace)
            leg.claim = Claim.of(answer)
            self._common.reads.wrote_claim(leg.claim)
