"""Leader election on a coordination.k8s.io Lease: of several processes, one works.

Invariant: `held` is False before any other process can take the lease over, by this machine's own clock, so
that a process which was stopped for a while notices before it writes; and `left_s` says for how long no
other can. A renewal is one request, for as long as nobody else writes the lease.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime

import anyio
from loguru import logger
from msgspec import Struct

from controller.runtime import errors
from controller.runtime.client import Client, Object, Resource

LEASES = Resource("coordination.k8s.io/v1", "leases")


class LeaseLostError(Exception):
    """The lease could not be renewed in time; another process may be working already."""


class LeaseOptions(Struct, frozen=True):
    """Names and times, in seconds; the times are controller-runtime's.

    Attributes:
        name: Name of the Lease.
        namespace: Its namespace.
        identity: Of this process; no two may share it.
        duration_s: Others may take the lease over after so long without a renewal.
        renew_deadline_s: The holder gives up after so long without a renewal; less than `duration_s`.
        retry_s: Between two tries to take or to renew it.
    """

    name: str
    namespace: str
    identity: str
    duration_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0


def _since_boot_s() -> float:
    # Goes on while the process, or the machine, is suspended.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Lease:
    """This process's hold on a Lease."""

    def __init__(
        self,
        client: Client,
        options: LeaseOptions,
        *,
        clock: Callable[[], float] = _since_boot_s,
        observe: Callable[[bool], None] | None = None,
    ) -> None:
        """Makes a hold that is not held yet.

        Args:
            client: Where the Lease is.
            options: Names and times.
            clock: Seconds that never stand still.
            observe: Told whether the lease is held, after each try.
        """
        # A third of what there is: a try that gets no answer leaves time for another.
        self._client = client.for_lease(options.renew_deadline_s / 3)
        self._options = options
        self._clock = clock
        self._observe = observe
        self._renewed_s = float("-inf")
        self._object: Object | None = None
        self._seen: tuple[object, float] = (None, clock())
        self._leads = False

    def held(self) -> bool:
        """Whether this process may write now."""
        return self._clock() < self._renewed_s + self._options.renew_deadline_s

    def left_s(self) -> float:
        """Seconds from now in which no other process can lead; 0 if this one may not write."""
        # The others read whole seconds.
        return self._renewed_s + int(self._options.duration_s) - self._clock() if self.held() else 0.0

    async def acquire(self) -> None:
        """Waits until this process holds the lease."""
        self._leads = False
        logger.bind(lease=self._options.name).info("Waiting for the leader's lease")
        while True:
            if await self._try():
                break
            await anyio.sleep(self._options.retry_s)
        self._leads = True
        logger.bind(lease=self._options.name, identity=self._options.identity).info("This process leads now")

    async def hold(self) -> None:
        """Renews the lease for ever.

        Raises:
            LeaseLostError: It is held by somebody else, or was not renewed within the deadline.
        """
        while True:
            await anyio.sleep(self._options.retry_s)
            if not await self._try() and not self.held():
                self._renewed_s = float("-inf")
                raise LeaseLostError(f"the lease {self._options.name} was lost")

    async def release(self) -> None:
        """Lets the next process have the lease at once."""
        held, self._renewed_s = self._object, float("-inf")
        if held is None:
            return
        try:
            with anyio.fail_after(self._options.retry_s):
                await self._write(
                    {**held, "spec": {**held["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}}
                )
        except (errors.ApiError, TimeoutError):
            logger.warning("The lease could not be released; it runs out by itself")

    async def _try(self) -> bool:
        """One try to take or renew; True if the lease is ours and fresh."""
        taken = await self._try_unobserved()
        if self._observe is not None:
            self._observe(self.held())
        return taken

    async def _try_unobserved(self) -> bool:
        asked_s = self._clock()
        try:
            with anyio.fail_after(self._options.renew_deadline_s / 2):
                taken = await self._renew() or await self._take()
        except errors.ConflictError:
            return False
        except (errors.ApiError, TimeoutError) as error:
            logger.bind(lease=self._options.name, error=str(error)).warning("The lease could not be renewed")
            return False
        if taken:
            self._renewed_s = asked_s
        return taken

    async def _renew(self) -> bool:
        """Writes the lease as we left it; False if somebody else wrote it since, or it was never ours."""
        mine = self._object
        if mine is None or not self.held():
            return False
        try:
            await self._write({**mine, "spec": {**mine["spec"], **self._spec(_now())}})
        except (errors.ConflictError, errors.NotFoundError):
            self._object = None
            return False
        return True

    async def _take(self) -> bool:
        options = self._options
        now = _now()
        try:
            found = await self._client.get(LEASES, options.name, options.namespace)
        except errors.NotFoundError:
            spec = {**self._spec(now), "acquireTime": now, "leaseTransitions": 0}
            metadata = {"name": options.name, "namespace": options.namespace}
            body: Object = {"apiVersion": LEASES.version, "kind": "Lease", "metadata": metadata, "spec": spec}
            self._object = await self._client.create(LEASES, body, options.namespace)
            return True
        spec = found.get("spec") or {}
        holder = spec.get("holderIdentity")
        if holder != options.identity:
            if self._leads or (holder and not self._expired(holder, spec)):
                # Ours until it was taken away: from here on nothing may be written, even if whoever took it
                # has let it go again, since he wrote what our work under way knows nothing of.
                self._renewed_s = float("-inf")
                return False
            spec = {
                **spec,
                "acquireTime": now,
                "leaseTransitions": int(spec.get("leaseTransitions") or 0) + 1,
            }
        await self._write({**found, "spec": {**spec, **self._spec(now)}})
        return True

    async def _write(self, lease: Object) -> None:
        self._object = await self._client.update(LEASES, lease, self._options.namespace)

    def _spec(self, now: str) -> Object:
        duration_s = int(self._options.duration_s)
        return {
            "holderIdentity": self._options.identity,
            "leaseDurationSeconds": duration_s,
            "renewTime": now,
        }

    def _expired(self, holder: str, spec: Object) -> bool:
        """Whether the other's lease stood still for its whole duration, by our clock, not by its."""
        record = (holder, spec.get("renewTime"))
        if record != self._seen[0]:
            self._seen = (record, self._clock())
        duration_s = float(spec.get("leaseDurationSeconds") or self._options.duration_s)
        return self._clock() > self._seen[1] + duration_s


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
