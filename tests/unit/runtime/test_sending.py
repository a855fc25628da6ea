"""What a 403 means of a server that has just started, and other answers that a real one gives for moments."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest
from msgspec.structs import replace

from controller.runtime import errors
from controller.runtime.calls import Call, Resource
from controller.runtime.ratelimit import RateLimits
from controller.runtime.sending import Sender

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # the client's time-outs are asyncio's


CALL = Call("GET", Resource("v1", "pods"), "ns", "a")
NO_ROLE = 'pods "a" is forbidden: User "binder" cannot get resource "pods" in API group ""'
NOT_READY = 'pods "a" is forbidden: not yet ready to handle request'
QUOTA = 'pods "a" is forbidden: exceeded quota: q'


class Answer:
    def __init__(self, code: int, message: str = "", **headers: str) -> None:
        self.status_code = code
        self.headers: Mapping[str, str] = headers
        self.text = json.dumps({"message": message, "reason": "Forbidden"})

    async def aread(self) -> bytes:
        return self.text.encode()


class StartingServer:
    """Answers as it is told, one after the other."""

    host, proxy = "server", None

    def __init__(self, answers: list[Answer], *, ready: bool) -> None:
        self._answers: Iterator[Answer] = iter(answers)
        self._ready = ready
        self.sent = self.asked = 0

    async def send(self, _call: Call, _told_s: float) -> Answer:
        self.sent += 1
        return next(self._answers)

    async def ready(self, _told_s: float) -> bool:
        self.asked += 1
        return self._ready


def sender(server: StartingServer) -> Sender:
    return Sender(cast(Any, server), RateLimits(0, 1), deadline_s=10, observe=None)


@pytest.mark.parametrize("text", [NO_ROLE, NOT_READY])
async def test_a_403_just_before_it_was_ready_is_asked_again(text: str) -> None:
    server = StartingServer([Answer(403, text), Answer(200)], ready=True)
    assert (await sender(server).request(CALL)).status_code == 200
    assert (server.sent, server.asked) == (2, 1)


@pytest.mark.parametrize(("text", "sent"), [(NO_ROLE, 2), (NOT_READY, 2), (QUOTA, 1), ("", 1)])
async def test_a_403_of_one_that_is_ready_is_told(text: str, sent: int) -> None:
    server = StartingServer([Answer(403, text)] * 3, ready=True)
    with pytest.raises(errors.ForbiddenError):
        await sender(server).request(CALL)
    assert (server.sent, server.asked) == (sent, 1)


async def test_a_403_of_one_that_is_not_is_no_answer() -> None:
    server = StartingServer([Answer(403, NO_ROLE)], ready=False)
    with pytest.raises(errors.NoAnswerError, match="not ready yet"):
        await sender(server).request(CALL)
    assert server.sent == 1


@pytest.mark.parametrize(
    ("location", "told"),
    [
        ("https://u:p@login.example.com:8443/x?token=t", "redirects (302) to https://login.example.com:8443"),
        ("//other", "redirects (302) to other"),
        ("/login?token=t", "redirects (302) to another path"),
        ("http://[bad", "redirects (302) to another path"),
        ("", "redirects (302) to another path"),
    ],
)
async def test_a_redirected_write_is_unclear(location: str, told: str) -> None:
    """What stood at the other place answered 200, and the bind counted as done."""
    server = StartingServer([Answer(302, location=location)], ready=True)
    with pytest.raises(errors.NoAnswerError) as caught:
        await sender(server).request(replace(CALL, method="POST"))
    assert caught.value.unclear
    assert caught.value.message == f"what answers is no API server: it {told}"
    assert server.sent == 1
