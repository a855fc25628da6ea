"""What the agent does about its pod, by what the API server answers; real servers are in tests/apiserver."""

import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from controller.agent.account import AccountError, Answer, ApiServer, Bearer, NoAnswerError
from controller.agent.pod import ANNOTATION, OwnPod, PodError
from controller.kai.names import GPU_INDEX

ENVIRON = {"POD_NAMESPACE": "reservations", "POD_NAME": "gpu-reservation-1"}
USER = "system:serviceaccount:reservations:agent"
DEVICE, OTHER = "GPU-1", "GPU-2"

Reply = Answer | NoAnswerError


def token(**claims: Any) -> str:  # noqa: ANN401
    """A token as the API server makes them, but for the signature."""
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{payload}.c2ln"


def bound(uid: str = "uid-1") -> str:
    return token(
        sub=USER, **{"kubernetes.io": {"namespace": "reservations", "pod": {"name": "p", "uid": uid}}}
    )


def metadata(value: str | None = None, *, uid: str = "uid-1", version: str = "1") -> Answer:
    annotations = {} if value is None else {"annotations": {ANNOTATION: value}}
    return Answer(200, {"metadata": {"uid": uid, "resourceVersion": version, **annotations}}, 0.0)


def no(status: int, *, retry_after_s: float = 0.0, message: str = "not so") -> Answer:
    return Answer(status, {"kind": "Status", "message": message}, retry_after_s)


class Server(ApiServer):
    """Answers by a list, and remembers what it was asked."""

    def __init__(self, replies: Sequence[Reply], folder: Path) -> None:
        super().__init__("localhost", 1, folder)
        self._replies = list(replies)
        self.asked: list[tuple[str, str, dict[str, Any] | None]] = []

    def send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Answer:
        self.asked.append((method, path, body))
        reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        if isinstance(reply, NoAnswerError):
            raise reply
        return reply


class Run:
    """An agent's pod before such a server."""

    def __init__(self, replies: Sequence[Reply], folder: Path, held: str) -> None:
        (folder / "token").write_text(held)
        self.server = Server(replies, folder)
        self.said: list[str] = []
        self.pauses_s: list[float] = []
        self.pod = OwnPod(self.server, ENVIRON, self.said.append, self.pauses_s.append)

    def report(self) -> None:
        if not self.pod.has_index():
            self.pod.report(DEVICE)

    def refusal(self) -> str:
        with pytest.raises(PodError) as raised:
            self.report()
        return str(raised.value)

    @property
    def methods(self) -> list[str]:
        return [method for method, _, _ in self.server.asked]


Runs = Callable[..., Run]


@pytest.fixture
def before(tmp_path: Path) -> Runs:
    def make(*replies: Reply, held: str = "") -> Run:
        return Run(replies, tmp_path, held or bound())

    return make


def test_the_annotation_is_that_which_the_binder_reads() -> None:
    assert ANNOTATION == GPU_INDEX


@pytest.mark.parametrize("value", [None, ""])
def test_the_patch_is_for_this_very_pod_as_it_was_read(before: Runs, value: str | None) -> None:
    run = before(metadata(value, version="7"), metadata(DEVICE))
    run.report()
    path = "/api/v1/namespaces/reservations/pods/gpu-reservation-1"
    patch = {"metadata": {"uid": "uid-1", "resourceVersion": "7", "annotations": {ANNOTATION: DEVICE}}}
    assert run.server.asked == [("GET", path, None), ("PATCH", path, patch)]
    assert run.pauses_s == []


def test_what_is_there_already_is_not_written_again(before: Runs) -> None:
    run = before(metadata(DEVICE))
    run.report()
    assert run.methods == ["GET"]
    assert run.said == [f"the annotation {ANNOTATION} says {DEVICE} already"]


@pytest.mark.parametrize("value", ["0", "7", "gpu-1", " "])
def test_an_index_stays(before: Runs, value: str) -> None:
    run = before(metadata(value))
    assert run.pod.has_index()
    assert run.methods == ["GET"]
    assert f"says {value!r}" in run.said[0]


def test_another_device_stays_and_is_an_end(before: Runs) -> None:
    run = before(metadata(OTHER))
    assert f"pod reservations/gpu-reservation-1 says {OTHER}, but the pod has {DEVICE}" in run.refusal()
    assert run.methods == ["GET"]


@pytest.mark.parametrize("status", [409, 422])
def test_a_pod_that_changed_meanwhile_is_read_again(before: Runs, status: int) -> None:
    run = before(metadata(version="1"), no(status), metadata(version="2"), metadata(DEVICE))
    run.report()
    assert run.methods == ["GET", "PATCH", "GET", "PATCH"]
    assert run.server.asked[-1][2] == {
        "metadata": {"uid": "uid-1", "resourceVersion": "2", "annotations": {ANNOTATION: DEVICE}}
    }


def test_what_somebody_wrote_meanwhile_is_not_replaced(before: Runs) -> None:
    assert f"says {OTHER}" in before(metadata(), no(409), metadata(OTHER)).refusal()


def test_an_index_that_somebody_wrote_meanwhile_stays(before: Runs) -> None:
    run = before(metadata(), no(409), metadata("3"))
    run.report()
    assert run.methods == ["GET", "PATCH", "GET"]


def test_a_pod_that_changes_for_ever(before: Runs) -> None:
    answers = [reply for _ in range(50) for reply in (metadata(), no(409, message="changed"))]
    run = before(*answers)
    assert run.refusal().endswith("cannot be written: changed")
    assert run.methods.count("PATCH") == 20


def test_a_refused_value(before: Runs) -> None:
    run = before(metadata(), no(413, message="too long"))
    assert run.refusal() == (
        f"annotation {ANNOTATION}={DEVICE} of pod reservations/gpu-reservation-1 cannot be written: too long"
    )


def test_the_next_pod_of_its_name_is_left_alone(before: Runs) -> None:
    run = before(metadata(uid="uid-2"))
    assert "was replaced by another one of its name" in run.refusal()
    assert run.methods == ["GET"]


def test_replaced_between_read_and_write(before: Runs) -> None:
    run = before(metadata(), no(422), metadata(uid="uid-2"), held="opaque")
    assert "was replaced" in run.refusal()
    assert run.methods == ["GET", "PATCH", "GET"]


@pytest.mark.parametrize("replies", [[no(404)], [metadata(), no(404)]], ids=["at the read", "at the write"])
def test_a_pod_that_is_gone(before: Runs, replies: list[Reply]) -> None:
    assert before(*replies).refusal() == "pod reservations/gpu-reservation-1 is gone: nothing is left to do"


def test_a_server_that_is_away_is_tried_on_with_longer_pauses(before: Runs) -> None:
    away = [NoAnswerError("refused"), no(503), no(429), no(500)]
    run = before(*away, *away, metadata(), NoAnswerError("refused"), metadata(DEVICE))
    run.report()
    assert run.pauses_s == [0.25, 0.5, 1, 2, 4, 5, 5, 5, 0.25]
    assert len(run.said) == 5, "each kind is told once, and the end"
    assert run.said[0] == "the API server does not answer, it is tried on: refused"
    assert run.said[1] == "the API server answers 503, it is tried on: not so"


def test_a_server_that_asks_for_patience(before: Runs) -> None:
    run = before(no(429, retry_after_s=30), no(503, retry_after_s=1e6), metadata(DEVICE))
    run.report()
    assert run.pauses_s == [30, 60]


def test_a_refusal_of_a_server_that_has_just_started(before: Runs) -> None:
    run = before(no(403), no(401), no(403), metadata(), no(403), metadata(DEVICE))
    run.report()
    assert run.methods[-1] == "PATCH"


def test_a_refusal_for_good(before: Runs) -> None:
    run = before(metadata(), no(403, message="pods is forbidden"))
    assert run.refusal() == (
        f"{USER} may not patch pods in namespace reservations: pods is forbidden; it needs a Role with get "
        "and patch of pods there, as in config/rbac/resource_reservation.yaml"
    )
    assert sum(run.pauses_s) == 12.75


def test_a_token_that_is_not_accepted(before: Runs) -> None:
    assert f"does not accept the token of {USER}: not so" in before(no(401)).refusal()


@pytest.mark.parametrize(
    "text", ["", "opaque", "a.b.c", "e30.e30.e30", "e30.bnVsbA.e30", "a.\xe9.c", "e30.W10.e30"]
)
def test_a_token_that_tells_nothing(before: Runs, text: str) -> None:
    assert Bearer.of(text) == Bearer()
    if text.isascii():
        before(metadata(uid="any"), metadata(DEVICE, uid="any"), held=text or "x").report()


def test_what_a_token_tells() -> None:
    assert Bearer.of(bound("uid-7")) == Bearer(USER, "uid-7")
    assert Bearer.of(token(sub=USER)) == Bearer(USER, "")
    assert Bearer.of(token(**{"kubernetes.io": {"pod": None}})) == Bearer()


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "POD_NAMESPACE is ''"),
        ({"POD_NAME": "p"}, "POD_NAMESPACE is ''"),
        ({"POD_NAMESPACE": "n"}, "POD_NAME is ''"),
        ({"POD_NAMESPACE": "n", "POD_NAME": "a/b"}, "POD_NAME is 'a/b'"),
        ({"POD_NAMESPACE": "..", "POD_NAME": "a"}, "POD_NAMESPACE is '..'"),
        ({"POD_NAMESPACE": "n", "POD_NAME": "a\n"}, r"POD_NAME is 'a\n'"),
        ({"POD_NAMESPACE": "n", "POD_NAME": "a" * 254}, "POD_NAME is 'aaa"),
    ],
)
def test_an_environment_that_names_no_pod(tmp_path: Path, environ: dict[str, str], words: str) -> None:
    with pytest.raises(PodError, match="must name the pod") as raised:
        OwnPod(ApiServer("localhost", 1, tmp_path), environ, print)
    assert words in str(raised.value)


def test_names_with_dots_and_of_full_length(tmp_path: Path) -> None:
    OwnPod(ApiServer("localhost", 1, tmp_path), {"POD_NAMESPACE": "n", "POD_NAME": f"a.{'b' * 251}"}, print)


@pytest.mark.parametrize("port", ["", "tcp://10.0.0.1:443", "-1", "٤"])
def test_no_address_of_a_server(tmp_path: Path, port: str) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": port}
    with pytest.raises(AccountError, match="runs in a pod"):
        ApiServer.from_environment(environ, tmp_path)
