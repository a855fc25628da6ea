"""How a request is sent, and what is done when it is refused.

Called by `client.py`. `_send` is the one send: the fence, what is left of the time, the observation, and the
mapping of what went wrong. `_after` is the one policy: it says of each refusal whether to send again.
Invariant: the server is told at each send what is left at that moment, so that a write is not carried out
once it was given up, or once the lease may be another's.
"""

import asyncio
import errno
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from time import monotonic
from urllib.parse import urlsplit

import aiohttp
import anyio
import orjson
from msgspec import Struct

from controller.runtime import errors
from controller.runtime.calls import Call
from controller.runtime.door import Door
from controller.runtime.ratelimit import RateLimits
from controller.runtime.session import CertificateError, OversizedError, Response

BROKEN = (aiohttp.ClientError, OSError)
"""How a way to the server breaks; a time-out is an OSError as well."""

_RETRY_AFTER_S = 1.0
_LEAST_S = 0.05
_MARGIN_S = 1.0
_QUOTA_S, _QUOTA_MAX_S = 0.05, 1.0

Observe = Callable[[Call, str, str], None]


class _Trial(Struct):
    """How far one request has got.

    Attributes:
        call: The request.
        ends_s: When its time is over.
        sent_s: When it was sent last.
        logged_in: Whether the credentials were loaded anew for it.
        sent_again: Whether it was sent again since its connection broke.
        was_ready: Whether the server, when it had forbidden it, said of itself that it was ready.
        quota_s: Seconds to wait for a quota the next time.
    """

    call: Call
    ends_s: float
    sent_s: float = 0.0
    logged_in: bool = False
    sent_again: bool = False
    was_ready: bool = False
    quota_s: float = _QUOTA_S


class _BrokenError(errors.NoAnswerError):
    """The connection broke before there was an answer."""


class _UntrustedError(errors.NoAnswerError):
    """The server's certificate is not one that we trust."""


class Sender:
    """Sends requests by one door, with one deadline and one set of rate limits."""

    def __init__(self, door: Door, limits: RateLimits, *, deadline_s: float, observe: Observe | None) -> None:
        """Sends nothing yet.

        Args:
            door: The way to the server.
            limits: How hard it may be pressed.
            deadline_s: Seconds that a request may take, the wait for the rate limit included.
            observe: Called for each answer with the request, HTTP status (`<error>` if there was none) and
                host.
        """
        self._door = door
        self._limits = limits
        self._deadline_s = deadline_s
        self._observe = observe
        self.lease_left_s: Callable[[], float] | None = None

    async def request(self, call: Call) -> Response:
        """Sends a request until it is accepted; the whole answer."""
        trial = _Trial(call, monotonic() + self._deadline_s)
        if not await self._limits.take((call.resource, call.lists), self._deadline_s - _LEAST_S):
            text = f"the rate limit leaves no room for it within {self._deadline_s:g} s"
            raise errors.NotSentError(str(call), text)
        return await self._until_accepted(trial, partial(self._door.send, call))

    @asynccontextmanager
    async def _stream(self, call: Call) -> AsyncIterator[Response]:
        """Sends a request whose answer goes on; only its beginning has a deadline."""
        async with AsyncExitStack() as stack:

            async def send(_: float) -> Response:
                return await stack.enter_async_context(self._door.stream(call))

            trial = _Trial(call, monotonic() + self._deadline_s)
            yield await self._until_accepted(trial, send)

    async def follow(
        self, call: Call, on_line: Callable[[bytes], None], *, idle_s: float, on_open: Callable[[], None]
    ) -> None:
        """Reads a stream line by line until the server ends it; arguments as in `Client.watch`."""
        async with self._stream(call) as response:
            on_open()
            heard_s = monotonic()
            rest = b""
            try:
                async with asyncio.timeout(idle_s) as silence:  # one for all: many chunks come each second
                    async for chunk in response.chunks():
                        heard_s = monotonic()
                        silence.reschedule(asyncio.get_running_loop().time() + idle_s)
                        *lines, rest = (rest + chunk).split(b"\n")
                        for line in lines:
                            on_line(line)
            except TimeoutError as error:
                await self._door.distrust(heard_s)
                raise errors.NoAnswerError(str(call), f"not a byte for {idle_s:g} s") from error
            except BROKEN as error:
                raise errors.NoAnswerError(str(call), sentence(error)) from error

    async def _until_accepted(self, trial: _Trial, send: Callable[[float], Awaitable[Response]]) -> Response:
        while True:
            try:
                return await self._send(trial, send)
            except (errors.StatusError, _BrokenError, _UntrustedError) as refusal:
                await self._after(trial, refusal)

    async def _send(self, trial: _Trial, send: Callable[[float], Awaitable[Response]]) -> Response:
        """Sends once.

        Raises:
            errors.ApiError: As the client's methods.
        """
        call = trial.call
        trial.sent_s = monotonic()
        left_s = trial.ends_s - trial.sent_s
        if call.writes and self.lease_left_s is not None:
            lease_left_s = self.lease_left_s()
            if lease_left_s < _LEAST_S:
                raise errors.FencedError(str(call), "this process does not hold the leader's lease")
            left_s = min(left_s, lease_left_s)
        try:
            async with asyncio.timeout(left_s):  # cheaper than anyio's, which counts here
                response = await send(left_s - min(_MARGIN_S, left_s / 4))
                failed = await self._failure(call, response)
        except TimeoutError as error:
            await self._door.distrust(trial.sent_s)
            raise self._unanswered(call, f"no answer within {left_s:.3g} s") from error
        except CertificateError as error:
            raise self._unanswered(call, sentence(error), _UntrustedError) from error
        except OversizedError as error:
            raise errors.TooLargeError(str(call), str(error)) from error
        except BROKEN as error:
            if getattr(error, "errno", None) == errno.ETIMEDOUT:
                await self._door.distrust(trial.sent_s)
            raise self._unanswered(call, sentence(error), _BrokenError) from error
        if self._observe is not None:
            self._observe(call, str(response.status_code), self._door.host)
        if failed is not None:
            raise failed
        return response

    async def _after(self, trial: _Trial, refusal: errors.ApiError) -> None:
        """What to do with a refusal: returns when the request is to be sent again, else raises."""
        match refusal:
            case errors.UnauthorizedError() | _UntrustedError() if not trial.logged_in:
                trial.logged_in = True  # the authority may have been changed, and its file with it
                with anyio.move_on_after(trial.ends_s - monotonic()):
                    await self._door.log_in(since_s=trial.sent_s)
                await self._wait(trial, refusal, 0.0)
            case errors.TooManyRequestsError():
                await self._wait(trial, refusal, refusal.retry_after_s or _RETRY_AFTER_S)
            case errors.QuotaConflictError():
                await self._wait(trial, refusal, trial.quota_s * random.uniform(0.5, 1.0))  # noqa: S311 -- no secret
                trial.quota_s = min(trial.quota_s * 2, _QUOTA_MAX_S)
            case errors.ForbiddenError() if not trial.was_ready:
                # It counts if it is given to a request that was sent to a server known to be ready: at the
                # first one the server may not have known its roles yet, and have learned them since.
                doubtful = errors.NoAnswerError(str(trial.call), f"not ready yet: {refusal.message}")
                if not await self._ready(trial):
                    raise doubtful
                if not refusal.may_be_premature:
                    raise refusal
                trial.was_ready = True
                await self._wait(trial, doubtful, 0.0)
            case _BrokenError() if not trial.call.writes and not trial.sent_again:
                trial.sent_again = True  # the server closes connections that were idle for long
            case _:
                raise refusal

    async def _wait(self, trial: _Trial, refusal: errors.ApiError, wait_s: float) -> None:
        if monotonic() + wait_s + _LEAST_S > trial.ends_s:
            raise refusal
        await anyio.sleep(wait_s)

    async def _ready(self, trial: _Trial) -> bool:
        """Whether the server says of itself that it is ready; asked only when it forbids something."""
        left_s = max(_LEAST_S, trial.ends_s - monotonic())
        try:
            with anyio.fail_after(left_s):
                return await self._door.ready(left_s)
        except (CertificateError, *BROKEN):
            return False

    def _unanswered(
        self, call: Call, text: str, error: type[errors.NoAnswerError] = errors.NoAnswerError
    ) -> errors.NoAnswerError:
        if self._observe is not None:
            self._observe(call, "<error>", self._door.host)
        return error(str(call), text + self._through)

    async def _failure(self, call: Call, response: Response) -> errors.ApiError | None:
        """What an answer says that is none of success."""
        if response.status_code >= 400:
            return await _refusal(call, response)
        if response.status_code >= 300:
            # No API server sends one elsewhere. It is not followed: what stands there may answer anything, an
            # empty list, or 200 to a write that was never carried out.
            where = _host(response.headers.get("location", "")) or "another path"
            text = f"what answers is no API server: it redirects ({response.status_code}) to {where}"
            return errors.NoAnswerError(str(call), text + self._through)
        return None

    @property
    def _through(self) -> str:
        return f" (through the proxy {self._door.proxy})" if self._door.proxy else ""


async def _refusal(call: Call, response: Response) -> errors.StatusError:
    """Reads an answer of 400 or more."""
    text = (await response.aread()).decode(errors="replace")
    try:
        body = orjson.loads(text)
    except orjson.JSONDecodeError:
        body = None
    body = body if isinstance(body, dict) else {}
    header = response.headers.get("retry-after", "")
    retry_after_s = float(header) if header.isdecimal() else None
    return errors.from_status(str(call), response.status_code, body, text, retry_after_s)


def _host(url: str) -> str:
    """Scheme and host of a URL; empty if it has none. The rest of one may hold secrets."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}".removeprefix("://") if host else ""


def sentence(error: BaseException) -> str:
    """An exception as a person reads it."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")
