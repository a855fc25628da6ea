"""Whether the binder runs the plugins that the webhook prepares pods for: asked of the binder's own metrics.

Run by the composition root, beside the server. Invariant: it never holds up a review, whatever the binder
does; what changes is logged once, and a difference is told to whoever makes a pod for as long as it lasts.
"""

from collections.abc import Callable, Sequence

import aiohttp
import anyio
from loguru import logger

from controller.admission.measures import Comparison

_INTERVAL_S = 60.0
_TIMEOUT_S = 5.0
_MAX_BYTES = 8 * 1024 * 1024

Compare = Callable[[str], Sequence[str] | None]
"""From the text of the binder's metrics to the differences in words; None if they do not tell."""


class Agreement:
    """Asks again and again.

    Attributes:
        warnings: What to tell who makes a pod; empty while no difference is known.
    """

    def __init__(
        self,
        url: str,
        compare: Compare,
        observe: Callable[[Comparison], None] = lambda _: None,
        *,
        interval_s: float = _INTERVAL_S,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        """Asks nothing yet.

        Args:
            url: Of the binder's metrics.
            compare: Reads them.
            observe: Told what each comparison has found.
            interval_s: Seconds from one to the next.
            timeout_s: Seconds that the binder has to answer.
        """
        self._url, self._compare, self._observe, self._interval_s = url, compare, observe, interval_s
        self._timeout_s = timeout_s
        self._found: Comparison | None = None
        self.warnings: tuple[str, ...] = ()

    async def run(self) -> None:
        """Compares at once, and then at each interval, until cancelled."""
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        while True:
            async with aiohttp.ClientSession(timeout=timeout) as session:
                await self._look(session)
            await anyio.sleep(self._interval_s)

    async def _look(self, session: aiohttp.ClientSession) -> None:
        try:
            text = await self._read(session)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            # The last verdict stands: a binder that is being restarted has not changed its settings yet.
            problem = str(error) or f"no answer within {self._timeout_s:g} s"
            self._tell("unanswered", self.warnings, problem)
            return
        differences = self._compare(text)
        if differences is None:
            self._tell("untold", ())
        elif not differences:
            self._tell("same", ())
        else:
            text = f"the binder and its admission webhook run different plugins: {'; '.join(differences)}"
            self._tell("different", (text,))

    async def _read(self, session: aiohttp.ClientSession) -> str:
        async with session.get(self._url, allow_redirects=False) as response:
            if response.status != 200:
                raise ValueError(f"it answered {response.status}")
            body = bytearray()
            async for chunk in response.content.iter_chunked(65536):
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise ValueError(f"its answer is larger than {_MAX_BYTES} bytes")
            return body.decode(errors="replace")

    def _tell(self, found: Comparison, warnings: tuple[str, ...], problem: str = "") -> None:
        self._observe(found)
        if (found, warnings) == (self._found, self.warnings):
            return
        self._found, self.warnings = found, warnings
        log = logger.bind(url=self._url)
        if found == "different":
            log.bind(difference=warnings[0]).warning("The binder runs other plugins than the webhook")
        elif found == "same":
            log.info("The binder runs the plugins that the webhook prepares pods for")
        elif found == "untold":
            log.warning("The binder does not say which plugins it runs, so they are not compared")
        else:
            log.bind(problem=problem).warning(
                "The binder's plugins cannot be compared: its metrics do not answer"
            )
