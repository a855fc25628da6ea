"""The webhook's server: what the API server sends goes to ``review``, by TLS.

Called by the composition root; anybody in the cluster can call it. Invariant: a request is answered whatever
it is, in one go once its body is there; whoever is refused learns why in a sentence. A caller that is slow or
sends much holds nobody else up, and the process stays within its memory: connections without the head of a
request end by themselves (`runtime.connections`), bodies share a budget (`bodies.py`), and large reviews are
judged one at a time, beside the event loop.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from time import perf_counter

import anyio
import anyio.to_thread
import orjson
from aiohttp import web
from loguru import logger
from msgspec import Struct

from controller.admission.bodies import Bodies, CrowdedError, TooLargeError
from controller.admission.measures import OTHER, Measures, Result
from controller.admission.review import BadReview
from controller.admission.tls import Certificate, switchboard
from controller.runtime.connections import Limits
from controller.runtime.endpoints import Address, listening
from controller.runtime.seldom import Seldom

LIMITS = Limits(connections=200)
"""An API server has one connection for each review that is under way, and keeps 25 of them."""
LARGE = 64 * 1024
"""Bytes. What is below is judged at once, in about a millisecond: the way to a thread would take longer."""
_MOST_BAD_SAID, _MOST_REFUSED_SAID = 10, 100
"""Records a minute of what anybody in the cluster can cause."""
_MOST_WAIT = 16
"""So many large reviews wait for their turn."""

Answer = Callable[[bytes], bytes]
"""From the body of an AdmissionReview to that of its answer; raises `BadReview`."""


class Patience(Struct, frozen=True):
    """How long the server waits for others, in seconds.

    Attributes:
        body: For the whole body of a request.
        drain: After it was told to stop, for the API server to hear of that; it serves meanwhile.
        end: After that, for requests under way.
    """

    body: float = 10.0
    drain: float = 3.0
    end: float = 5.0


class Server:
    """The server, from its first certificate to its end.

    Attributes:
        port: The port in use while it serves.
    """

    def __init__(
        self,
        address: Address,
        answers: Mapping[str, Answer],
        certificate: Certificate,
        measures: Measures,
        patience: Patience | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        """Prepares the server.

        Args:
            address: Where to listen.
            answers: What answers, by path.
            certificate: What is shown to callers; it is followed by the server.
            measures: Counts the requests.
            patience: How long it waits for others.
            limits: What callers may have.
        """
        self._address, self._answers, self._certificate = address, answers, certificate
        self._measures, self._patience = measures, patience or Patience()
        self._limits = limits
        self._bodies, self._turn = Bodies(), anyio.CapacityLimiter(1)
        self._bad, self._refused = Seldom(_MOST_BAD_SAID), Seldom(_MOST_REFUSED_SAID)
        self._stopping = False
        self.port: int | None = None

    def ready(self) -> str | None:
        """Why no request should be sent here; None if all is well."""
        if self._stopping:
            return "the webhook is about to end"
        if self.port is None:
            return f"there is no certificate yet: {self._certificate.problem}"
        return None

    async def run(self, stop: anyio.Event) -> None:
        """Serves until `stop` is set, and then until those who still call have heard of it.

        Raises:
            ListenError: The address is in use or not ours.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._certificate.run)
            tasks.start_soon(self._serve)
            await stop.wait()
            self._stopping = True
            if self.port is not None:
                await anyio.sleep(self._patience.drain)
            tasks.cancel_scope.cancel()

    async def _serve(self) -> None:
        await self._certificate.wait()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        tls = switchboard(lambda: self._certificate.shown)
        limits, end_s = self._limits, self._patience.end
        async with listening("admission", self._address, app, tls=tls, end_s=end_s, limits=limits) as port:
            self.port = port
            logger.bind(address=str(self._address)).info("The webhook serves")
            await anyio.sleep_forever()

    async def _handle(self, request: web.Request) -> web.Response:
        began_s = perf_counter()
        result, response = await self._respond(request)
        path = request.path if request.path in self._answers else OTHER
        self._measures.answered(path, result, perf_counter() - began_s)
        if self._stopping:
            response.force_close()  # so that no request is on its way when the connection ends
        return response

    async def _respond(self, request: web.Request) -> tuple[Result, web.Response]:
        answer = self._answers.get(request.path)
        if answer is None:
            return _bad(404, f"there is no {request.path} here; there are {', '.join(self._answers)}")
        if request.method != "POST":
            return _bad(405, f"{request.method} is not allowed; reviews come by POST", {"Allow": "POST"})
        if request.content_type != "application/json":
            return _bad(415, f"a review is application/json, not {request.content_type}")
        if "Content-Encoding" in request.headers:
            return _bad(415, "a review comes as it is, without a Content-Encoding")
        try:
            async with self._bodies.reading(request.content, self._patience.body) as body:
                return await self._judge(request.path, answer, body)
        except TooLargeError as error:
            return _bad(413, str(error))
        except CrowdedError as error:
            return _bad(503, f"{error}; come again later")
        except TimeoutError:
            return _bad(408, f"the body was not there within {self._patience.body:g} s")
        except (ConnectionError, web.RequestPayloadError) as error:
            return _bad(400, f"the body ended before its end: {error!r}")

    async def _judge(self, path: str, answer: Answer, body: bytes) -> tuple[Result, web.Response]:
        try:
            if len(body) <= LARGE:
                answered = answer(body)
            elif self._turn.statistics().tasks_waiting < _MOST_WAIT:
                answered = await anyio.to_thread.run_sync(answer, body, limiter=self._turn)
            else:
                raise CrowdedError(f"{_MOST_WAIT} large reviews wait for their turn")
        except CrowdedError:
            raise
        except BadReview as error:
            unsaid = self._bad.happened()
            if unsaid is not None:
                log = logger.bind(path=path, problem=str(error), unsaid=unsaid)
                log.warning("A request is no review")
            return _bad(400, str(error))
        except Exception:  # noqa: BLE001 -- the API server refuses the pod then, and somebody has to learn why
            logger.bind(path=path).exception("A review failed by a fault of ours")
            return "failed", web.Response(
                status=500, text="a fault of the webhook's; its log has the trace\n"
            )
        return self._verdict(answered), web.Response(body=answered, content_type="application/json")

    def _verdict(self, answered: bytes) -> Result:
        """What an answer says; a refusal goes to the log, too."""
        response = orjson.loads(answered)["response"]
        if response["allowed"]:
            return "allowed"
        with suppress(KeyError):
            unsaid = self._refused.happened()
            if unsaid is not None:
                more = {"unsaid": unsaid} if unsaid else {}
                log = logger.bind(uid=response["uid"], message=response["status"]["message"], **more)
                log.info("A pod was refused")
        return "refused"


def _bad(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> tuple[Result, web.Response]:
    return "bad", web.Response(status=status, text=f"{sentence}\n", headers=headers)
