"""The agent's own pod: what its annotation says of the device, and the writing of it.

Called by `command`. Invariants: only this very pod is written to, never a later one of its name (it may be
replaced while this process still runs: its name follows from node and group); and a device that is named
already is never replaced, since pods may run by it.
"""

import re
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus

from controller.agent.account import Answer, ApiServer, NoAnswerError, Object
from controller.agent.device import names_device

ANNOTATION = "run.ai/reserve_for_gpu_index"

_PART = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME = re.compile(rf"{_PART}(\.{_PART})*")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 5.0
_LONGEST_WISH_S = 60.0
"""Of a server that asks for patience."""
_REFUSALS = 7
"""So often in a row: a server that has just started knows neither roles nor accounts. It takes 13 s."""
_CONFLICTS = 20

_REFUSED = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_AWAY = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})
_CHANGED = frozenset({HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY})
"""Answers to a write to a pod that has changed, or has been replaced."""


class PodError(Exception):
    """The annotation cannot be written, or must not be; the text says why."""


class OwnPod:
    """The pod that this process runs in."""

    def __init__(
        self,
        server: ApiServer,
        environ: Mapping[str, str],
        say: Callable[[str], None],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Asks nothing yet.

        Args:
            server: The API server.
            environ: Must have POD_NAMESPACE and POD_NAME.
            say: Gets what a person should know meanwhile.
            pause: Waits for so many seconds.

        Raises:
            PodError: The environment does not name a pod.
        """
        self._namespace, self._name = (_variable(environ, part) for part in ("POD_NAMESPACE", "POD_NAME"))
        self._server = server
        self._say = say
        self._pause = pause
        self._told: set[object] = set()
        self._metadata: Object = {}

    def has_index(self) -> bool:
        """Reads the pod; whether its annotation holds an index of the kind that old agents wrote.

        Such a value stays: pods may run by it, and it cannot be compared with a UUID.

        Raises:
            AccountError: There is no service account.
            PodError: The pod cannot be read, or is gone.
        """
        self._read()
        present = self._present()
        if not present or names_device(present):
            return False
        self._say(f"the annotation {ANNOTATION} says {present!r}, which is no UUID of a device: it stays")
        return True

    def report(self, device: str) -> None:
        """Writes the device into the annotation of the pod as it was read last, unless it is there.

        Args:
            device: Its UUID.

        Raises:
            AccountError: There is no service account.
            PodError: The annotation names another device, or cannot be written; or the pod is gone.
        """
        for _ in range(_CONFLICTS):
            if self._present():
                self._compare(self._present(), device)
                return
            answer = self._write(device)
            if answer.status < HTTPStatus.MULTIPLE_CHOICES:
                self._say(f"the annotation {ANNOTATION} says {device} now")
                return
            if answer.status not in _CHANGED:
                break
            self._pause(_FIRST_PAUSE_S)
            if self.has_index():
                return
        raise PodError(
            f"annotation {ANNOTATION}={device} of pod {self._full_name} cannot be written: {answer.message}"
        )

    @property
    def _full_name(self) -> str:
        return f"{self._namespace}/{self._name}"

    def _present(self) -> str:
        return str((self._metadata.get("annotations") or {}).get(ANNOTATION, ""))

    def _compare(self, present: str, device: str) -> None:
        if present != device:
            found = f"the annotation {ANNOTATION} of pod {self._full_name} says {present}"
            raise PodError(
                f"{found}, but the pod has {device}: it stays, since pods may run by it; delete this pod "
                "once nobody uses its GPU"
            )
        self._say(f"the annotation {ANNOTATION} says {device} already")

    def _read(self) -> None:
        answer = self._ask("get", "GET")
        if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise PodError(f"pod {self._full_name} cannot be read: {answer.message}")
        metadata: Object = answer.body.get("metadata") or {}
        # The kubelet's token names the pod that it is for; with one of another kind the first read decides.
        uid = self._metadata.get("uid") or self._server.bearer().pod_uid or metadata.get("uid")
        if metadata.get("uid") != uid:
            raise PodError(
                f"pod {self._full_name} was replaced by another one of its name: nothing is left to do"
            )
        self._metadata = metadata

    def _write(self, device: str) -> Answer:
        """Writes to this pod as it was read: the server refuses if it has another uid, or has changed."""
        metadata = {name: self._metadata.get(name) for name in ("uid", "resourceVersion")}
        return self._ask("patch", "PATCH", {"metadata": {**metadata, "annotations": {ANNOTATION: device}}})

    def _ask(self, verb: str, method: str, body: Object | None = None) -> Answer:
        """Sends a request until the server has looked at it, however long it is away.

        Raises:
            PodError: There is no such pod, or it may not be asked for.
        """
        path = f"/api/v1/namespaces/{self._namespace}/pods/{self._name}"
        pause_s, refusals = _FIRST_PAUSE_S, 0
        while True:
            try:
                answer = self._server.send(method, path, body)
            except NoAnswerError as error:
                self._tell_once("no answer", f"the API server does not answer, it is tried on: {error}")
                wish_s = 0.0
            else:
                status, wish_s = answer.status, answer.retry_after_s
                if status == HTTPStatus.NOT_FOUND:
                    raise PodError(f"pod {self._full_name} is gone: nothing is left to do")
                if status in _REFUSED:
                    refusals += 1
                    if refusals >= _REFUSALS:
                        raise PodError(self._refusal(verb, answer))
                elif status not in _AWAY and status < HTTPStatus.INTERNAL_SERVER_ERROR:
                    return answer
                self._tell_once(status, f"the API server answers {status}, it is tried on: {answer.message}")
            self._pause(max(pause_s, min(wish_s, _LONGEST_WISH_S)))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _tell_once(self, kind: object, text: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            self._say(text)

    def _refusal(self, verb: str, answer: Answer) -> str:
        user = self._server.bearer().user or "its service account"
        if answer.status == HTTPStatus.UNAUTHORIZED:
            return f"the API server does not accept the token of {user}: {answer.message}; is its pod gone?"
        return (
            f"{user} may not {verb} pods in namespace {self._namespace}: {answer.message}; it needs a Role "
            "with get and patch of pods there, as in config/rbac/resource_reservation.yaml"
        )


def _variable(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if len(value) > 253 or not _NAME.fullmatch(value):
        raise PodError(
            f"{name} is {value[:300]!r}, but must name the pod that this program runs in; the reservation "
            "pods get it from the downward API"
        )
    return value
