"""Waits until reservation pods have named their devices.

Called by `Reservations` for all groups of a request at once: the first that fails ends the wait for the rest.
Invariant: what is returned as a device is one device (`manifest.device_of`), since it goes to the container
as it is.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from enum import Enum

import anyio

from controller.kai.names import PODS
from controller.kai.outcome import Failed
from controller.kai.pods import full_name, is_finished
from controller.kai.reasons import Reason
from controller.reservation.manifest import device_of
from controller.reservation.members import Members
from controller.reservation.usage import Usage
from controller.runtime.changes import Changes, Judged, Target
from controller.runtime.client import Object

Waiting = Callable[[str], AbstractAsyncContextManager[None]]
"""`async with waiting("what for"):` around each wait for somebody else; raises once the wait is in vain."""

_SHOWN = 200


class _Replaced(Enum):
    """The pod was removed by this process, to be made anew."""

    YES = True


def answer_of(found: Object | None, awaited: Object) -> str | Failed | None:
    """What has become of a reservation pod that somebody waits for.

    Args:
        found: The pod of its name as it is now, or None if there is none.
        awaited: As it was when the wait began.

    Returns:
        The device, or why it will never be named, or None to wait on.
    """
    name = full_name(awaited)
    if found is None:
        return Failed(Reason.RESERVATION_FAILED, f"reservation pod {name} was deleted")
    if found["metadata"]["uid"] != awaited["metadata"]["uid"]:
        return Failed(Reason.RESERVATION_FAILED, f"reservation pod {name} was replaced")
    if found["metadata"].get("deletionTimestamp"):
        return Failed(Reason.RESERVATION_FAILED, f"reservation pod {name} is being deleted")
    if is_finished(found):
        status = found["status"]
        why = _joined(status, "reason", "message")
        text = f"reservation pod {name} ended with phase {status['phase']}" + (f": {why}" if why else "")
        return Failed(Reason.RESERVATION_FAILED, text)
    return device_of(found)


def hindrances_of(pod: Object) -> str:
    """What the status of a pod that says nothing tells of why, for a message; empty if nothing."""
    status = pod.get("status") or {}
    told = [
        f"PodScheduled: {_joined(condition, 'reason', 'message')}"
        for condition in status.get("conditions") or ()
        if condition["type"] == "PodScheduled" and condition["status"] != "True"
    ]
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting")
        if waiting:
            told.append(f"container {container['name']}: {_joined(waiting, 'reason', 'message')}")
        for state in ("state", "lastState"):
            ended = (container.get(state) or {}).get("terminated")
            if ended:
                why = _joined(ended, "reason", "message")
                told.append(f"it ended with exit code {ended.get('exitCode')}: {why}")
    return "; ".join(told)


def _joined(values: Mapping[str, object], *names: str) -> str:
    """The texts under these names, cut where nobody would read on."""
    text = ": ".join(" ".join(str(values[name]).split()) for name in names if values.get(name))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


class Answers:
    """Waits for the agents in reservation pods."""

    def __init__(self, changes: Changes, members: Members, usage: Usage) -> None:
        """Makes it.

        Args:
            changes: Tells of the pods.
            members: For a live look at the end of the time.
            usage: Where pods are noted that stay silent.
        """
        self._changes = changes
        self._members = members
        self._usage = usage
        self._timeout_s = members.options.timeout_s  # as it is told; the deadline is the caller's

    async def of(
        self, reservations: Mapping[str, Object], waiting: Waiting, deadline_s: float
    ) -> dict[str, str] | Failed:
        """Waits for the devices of these groups.

        Args:
            reservations: The pods by group, in the order in which they are spoken of.
            waiting: Around the wait.
            deadline_s: Until when, by the clock of the event loop.

        Returns:
            The devices by group. If a group is missing its pod was removed by this process, and is to be
            found or made again. Or why a group will have no device.
        """
        devices: dict[str, str] = {}
        silent: dict[str, Object] = {}
        for group, pod in reservations.items():
            device = device_of(pod)
            if isinstance(device, Failed):
                return device
            if device is None:
                silent[group] = pod
            else:
                devices[group] = device
        if not silent:
            return devices
        more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
        what = f"reservation pod {full_name(next(iter(silent.values())))}{more} to report its GPU"
        async with waiting(what):
            failure = await self._wait(silent, devices, deadline_s)
        return failure or devices

    async def _wait(
        self, silent: dict[str, Object], devices: dict[str, str], deadline_s: float
    ) -> Failed | None:
        """Moves what answers from `silent` to `devices`, until all did, one failed, or one was replaced."""
        started_s = anyio.current_time()
        while silent:
            answered: list[tuple[str, str | Failed | _Replaced]] = []
            with anyio.move_on_after(deadline_s - anyio.current_time()):
                answered.append(await self._changes.until(*map(self._judged, silent, silent.values())))
            if not answered:
                return await self._look_live(silent, devices, anyio.current_time() - started_s)
            group, answer = answered[0]
            if isinstance(answer, Failed):
                return answer
            if isinstance(answer, _Replaced):
                return None
            devices[group] = answer
            del silent[group]
        return None

    def _judged(self, group: str, pod: Object) -> Judged[tuple[str, str | Failed | _Replaced]]:
        metadata = pod["metadata"]
        target = Target(PODS, metadata["name"], metadata["namespace"], metadata["resourceVersion"])

        def judge(found: Object | None) -> tuple[str, str | Failed | _Replaced] | None:
            if self._usage.was_removed(pod):
                return group, _Replaced.YES
            answer = answer_of(found, pod)
            return None if answer is None else (group, answer)

        return Judged(target, judge)

    async def _look_live(
        self, silent: Mapping[str, Object], devices: dict[str, str], waited_s: float
    ) -> Failed | None:
        """When the time is over: the cache may have missed what was said, and the pod tells what is wrong.

        Pods that were silent for the most part of the time are given up; one that was made since is not.
        """
        timed_out: Failed | None = None
        for group, pod in silent.items():
            if timed_out is None:
                found = await self._members.read(pod["metadata"]["name"])
                answer = answer_of(found, pod)
                if isinstance(answer, Failed):
                    return answer
                if answer is not None:
                    devices[group] = answer
                    continue
                timed_out = self._timed_out(found or pod)
            # One that has users said something once: to remove it would take their GPU.
            if waited_s >= self._timeout_s / 2 and not self._members.users(group):
                self._usage.give_up(pod)
        return timed_out

    def _timed_out(self, found: Object) -> Failed:
        phase = (found.get("status") or {}).get("phase", "unknown")
        text = f"reservation pod {full_name(found)} reported no GPU within {self._timeout_s:g} s"
        why = "; ".join(filter(None, (f"its phase is {phase}", hindrances_of(found))))
        return Failed(Reason.RESERVATION_TIMEOUT, f"{text}; {why}")
