"""The certificate that the webhook shows: where it comes from, whether it can be used, until when.

Called by `server.py`, which shows it, and by who makes one (`selfsigned.py`). Invariant: a certificate and a
key that do not belong together are never shown; until a good pair comes, the last good one stays.
"""

import ssl
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import anyio
from loguru import logger
from msgspec import Struct

_POLL_S = 1.0


class UnusableError(Exception):
    """A certificate or key cannot be used; the text says why, and names no secret."""


class KeyPair(Struct, frozen=True):
    """A certificate with its key, as they were read.

    Attributes:
        certificate: PEM, the server's own first, then its chain.
        key: PEM.
    """

    certificate: bytes
    key: bytes


class Shown(Struct, frozen=True):
    """A certificate in use.

    Attributes:
        pair: What it was made from.
        context: Answers the handshakes.
        not_after: When it ends.
    """

    pair: KeyPair
    context: ssl.SSLContext
    not_after: datetime


Source = Callable[[], KeyPair]
"""Gives the present certificate; raises `UnusableError` while there is none."""


def files(certificate: Path, key: Path) -> Source:
    """The certificate in two mounted files; a swap of both, as the kubelet does it, may be seen half done."""

    def read() -> KeyPair:
        found = []
        for what, path in (("certificate", certificate), ("key", key)):
            try:
                found.append(path.read_bytes())
            except OSError as error:
                raise UnusableError(f"the {what} {path} cannot be read: {error.strerror}") from None
        return KeyPair(*found)

    return read


def load(pair: KeyPair) -> Shown:
    """Makes a pair ready for handshakes.

    Raises:
        UnusableError: The pair is no certificate with its key, or nothing can be written.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # The library reads certificates from files only. The password keeps it from asking at a terminal.
        with tempfile.NamedTemporaryFile(prefix="kai-binder-") as file:
            file.write(pair.certificate + b"\n" + pair.key)
            file.flush()
            context.load_cert_chain(file.name, password="")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or "they are no PEM, or the key has a password"
        raise UnusableError(f"the certificate and the key cannot be used together: {reason}") from None
    except OSError as error:
        text = f"the certificate needs a place for a temporary file, and there is none: {error.strerror}"
        raise UnusableError(text) from None
    return Shown(pair, context, not_after(pair.certificate))


def not_after(pem: bytes) -> datetime:
    """When the first certificate of a PEM ends.

    Raises:
        UnusableError: It is none.
    """
    from cryptography import (
        x509,
    )  # late: it is large, and a stand-in for it is there while others are imported

    try:
        return x509.load_pem_x509_certificate(pem).not_valid_after_utc
    except ValueError as error:
        raise UnusableError(f"the certificate cannot be read: {error}") from None


def switchboard(current: Callable[[], Shown]) -> ssl.SSLContext:
    """A context that hands each new handshake to the certificate that is in use then."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2

    def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = current().context

    context.sni_callback = choose  # asked for callers that name no server, too
    return context


class Certificate:
    """Follows a source, and keeps what is shown to callers.

    Attributes:
        problem: Why what the source has now cannot be used, or None.
    """

    def __init__(
        self,
        source: Source,
        *,
        observe: Callable[[datetime], None] = lambda _: None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        poll_s: float = _POLL_S,
    ) -> None:
        """Reads nothing yet.

        Args:
            source: Where it comes from.
            observe: Told when a certificate that comes into use ends.
            clock: The present time.
            poll_s: Seconds between two looks.
        """
        self._source, self._observe, self._clock, self._poll_s = source, observe, clock, poll_s
        self._shown: Shown | None = None
        self._expired: KeyPair | None = None
        self._there = anyio.Event()
        self.problem: str | None = "it has not been looked for yet"

    @property
    def shown(self) -> Shown:
        """What is in use; only to be asked for after `wait`."""
        assert self._shown is not None  # noqa: S101 -- the caller has waited
        return self._shown

    async def wait(self) -> None:
        """Waits until there is one to show."""
        await self._there.wait()

    async def run(self) -> None:
        """Follows the source until cancelled."""
        while True:
            self.look()
            await anyio.sleep(self._poll_s)

    def look(self) -> None:
        """Takes what the source has now, if it can be used; tells of what is new."""
        try:
            pair = self._source()
            if self._shown is None or pair != self._shown.pair:
                self._use(load(pair))
            self.problem = None
        except UnusableError as error:
            if str(error) != self.problem:
                self.problem = str(error)
                until = {} if self._shown is None else {"kept_until": self._shown.not_after.isoformat()}
                text = "waiting for one" if self._shown is None else "the last good one stays in use"
                logger.bind(problem=self.problem, **until).warning(f"There is no usable certificate: {text}")
        shown = self._shown
        if shown is not None and shown.not_after <= self._clock() and self._expired != shown.pair:
            self._expired = shown.pair
            log = logger.bind(not_after=shown.not_after.isoformat())
            log.warning("The certificate has expired: the API server refuses to call the webhook")

    def _use(self, shown: Shown) -> None:
        self._shown = shown
        self._observe(shown.not_after)
        self._there.set()
        logger.bind(not_after=shown.not_after.isoformat()).info("A certificate is in use")
