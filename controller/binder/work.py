"""One request that is worked on, and what is known of it meanwhile.

The reconciler makes these; to the pipeline a `Work` is its `Caller`. Invariant: where something is
taken away because a request is gone, it is read live (`Work.is_handed_over`).
"""

from collections.abc import Mapping

from msgspec import Struct

from controller.binder.decisions import why_obsolete
from controller.binder.telling import Teller
from controller.kai.names import BIND_REQUESTS
from controller.kai.nodepool import WHOLE, NodePool
from controller.kai.outcome import Failed, Outcome
from controller.kai.reasons import Reason
from controller.kai.request import BindRequest, is_over
from controller.runtime import errors
from controller.runtime.cache import Cache
from controller.runtime.client import Client, Object
from controller.runtime.slots import Slot


class Caches(Struct, frozen=True, kw_only=True):
    """What the reconciler reads without asking the server.

    Attributes:
        requests: All requests.
        pods: Those of the scheduler.
        nodes: All nodes.
        reservations: Reservation pods.
        pool: Whose objects they hold; the reservations are those of all pools.
    """

    requests: Cache
    pods: Cache
    nodes: Cache
    reservations: Cache
    pool: NodePool = WHOLE

    def all(self) -> tuple[Cache, ...]:
        """Each of them."""
        return self.requests, self.pods, self.nodes, self.reservations


class Work(Struct, frozen=True, kw_only=True):
    """One request that is worked on, for the pipeline (`Caller`).

    Attributes:
        item: As it was read.
        request: The same, parsed.
        slot: Of the worker.
        client: For live looks.
        caches: Know what it is now.
        teller: Knows what its status is now, and shows waits.
        order: Condition types of all steps.
    """

    item: Object
    request: BindRequest
    slot: Slot
    client: Client
    caches: Caches
    teller: Teller
    order: tuple[str, ...]

    def obsolete(self) -> Failed | None:
        """Why it is not to be bound any more, as far as the cache knows; a blind one knows nothing."""
        metadata = self.item["metadata"]
        held = self.caches.requests.get(metadata["name"], metadata["namespace"])
        if held is None and self.caches.requests.is_blind:
            return None
        return why_obsolete(self.item, held)

    async def is_handed_over(self, failure: Failed) -> bool:
        """Whether it is in another pool by now, or was: to the cache that looks as if it were deleted.

        One that has come back is worked on anew, since it is new to the cache.
        """
        if self.caches.pool.is_whole:
            return False
        try:
            found = await self.client.get(BIND_REQUESTS, self.request.name, self.request.namespace)
        except errors.NotFoundError:
            return False
        if found["metadata"]["uid"] != self.request.uid:
            return False
        was_away = failure.reason == Reason.REQUEST_DELETED and not is_over(found)
        return was_away or not self.caches.pool.holds(found)

    def is_final(self, failure: Failed) -> bool:
        """Whether no further attempt of this very decision follows one that failed so."""
        return failure.reason == Reason.REQUEST_CHANGED or self.teller.standing(self.item).is_final(failure)

    async def show_waiting(self, step: str, what: str, outcomes: Mapping[str, Outcome]) -> None:
        """Shows in the status that a step waits."""
        await self.teller.show_waiting(self.item, self.order, {step: what}, outcomes)


class Kept(Struct, frozen=True):
    """An attempt that failed or was broken off, whose work is kept, in part or whole, for the retry.

    Attributes:
        work: The request.
        pod: Its pod, as it was then.
    """

    work: Work
    pod: Object

    def is_of(self, pod: Object) -> bool:
        """Whether it is this very pod that was to be bound."""
        return bool(pod["metadata"]["uid"] == self.pod["metadata"]["uid"])

    def in_vain(self, pod: Object | None) -> Failed | None:
        """Why the retry will not come, if there now is this pod, or none; None if it may."""
        if pod is None or not self.is_of(pod):
            name = self.work.request.full_pod_name
            return Failed(Reason.POD_NOT_FOUND, f"pod {name} was deleted", retry=False)
        return self.work.obsolete()
