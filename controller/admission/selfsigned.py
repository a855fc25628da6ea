"""Keeps a certificate of one's own making in a Secret, and has the API server trust it. For trials.

Run by the composition root with ``--self-signed-certificate``. The Secret is installed empty; replicas agree
by it: who comes second takes what is there. Invariant: while another certificate comes into use, the API
server trusts the old one and the new one; what somebody else has set is left alone, and that is told. Only a
certificate that is about to end is replaced before all trust the next one.
"""

import base64
import binascii
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import anyio
from loguru import logger
from msgspec import Struct

from controller.admission.certificate import Issued, is_ours, issue, names_of, why_another
from controller.admission.tls import KeyPair, UnusableError, not_after
from controller.runtime import errors
from controller.runtime.client import Client, Object, Patch, Resource

SECRETS = Resource("v1", "secrets")
_GROUP = "admissionregistration.k8s.io/v1"
CONFIGURATIONS = (
    Resource(_GROUP, "mutatingwebhookconfigurations", namespaced=False),
    Resource(_GROUP, "validatingwebhookconfigurations", namespaced=False),
)
OWNER_LABEL, OWNER = "app.kubernetes.io/managed-by", "kai-binder-admission"
INJECTED = "cert-manager.io/inject-ca-from"
_AT_LAST = timedelta(days=30)
_KEYS = ("ca.crt", "tls.crt", "tls.key")


class Place(Struct, frozen=True):
    """Where things are.

    Attributes:
        namespace: Of the Service and the Secret.
        service: The certificate is for it.
        secret: Where the certificate is kept.
        configuration: Name of both webhook configurations.
    """

    namespace: str
    service: str
    secret: str
    configuration: str


class Pace(Struct, frozen=True):
    """Seconds.

    Attributes:
        again: After something went wrong, or somebody else was faster.
        look: From one look to the next while all is well.
        spread: For all API servers to learn whom to trust, before a new certificate is shown.
    """

    again: float = 2.0
    look: float = 30.0
    spread: float = 10.0


class _ForeignError(Exception):
    """Something is somebody else's; the text says what."""


class Maker:
    """Makes, keeps, renews and publishes the certificate."""

    def __init__(
        self,
        place: Place,
        pace: Pace | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Asks nothing yet.

        Args:
            place: Where things are.
            pace: How often it looks.
            clock: The present time.
        """
        self._place, self._pace, self._clock = place, pace or Pace(), clock
        self._names = names_of(place.service, place.namespace)
        self._pair: KeyPair | None = None
        self._authorities = b""  # the last ones read, which the API server may trust
        self._problem = "the self-signed certificate is not made yet"
        self._told: set[str] = set()

    def read(self) -> KeyPair:
        """The certificate to show.

        Raises:
            UnusableError: There is none yet.
        """
        if self._pair is None:
            raise UnusableError(self._problem)
        return self._pair

    async def run(self, client: Client) -> None:
        """Goes on until cancelled; a look that failed is repeated soon."""
        while True:
            problems = await self._look(client)
            for problem in sorted(problems - self._told):
                logger.bind(problem=problem).warning(
                    "The self-signed certificate is not yet trusted everywhere"
                )
            if self._told and not problems:
                logger.info("The self-signed certificate is trusted everywhere")
            self._told = problems
            await anyio.sleep(self._pace.again if problems else self._pace.look)

    async def _look(self, client: Client) -> set[str]:
        """Makes sure of everything once; returns what went wrong, in words."""
        try:
            issued = await self._secret(client)
        except _ForeignError as error:
            self._problem = str(error)
            return {self._problem}
        except errors.ApiError as error:
            self._problem = f"{error.request}: {error.message}"
            return {self._problem}
        self._authorities = issued.authorities
        if self._pair is None or self._must_go(self._pair):
            self._pair = issued.pair
        problems = await self._publish_all(client, issued.authorities)
        if self._pair != issued.pair and not problems:
            await anyio.sleep(self._pace.spread)
            # Once more: another replica may have published what it had read before.
            problems = await self._publish_all(client, issued.authorities)
            self._pair = self._pair if problems else issued.pair
        return problems

    def _must_go(self, pair: KeyPair) -> bool:
        """Whether a certificate is so near its end that another one is shown, whoever trusts that."""
        return not_after(pair.certificate) - self._clock() <= _AT_LAST

    async def _publish_all(self, client: Client, authorities: bytes) -> set[str]:
        problems = set()
        for resource in CONFIGURATIONS:
            try:
                await self._publish(client, resource, authorities)
            except _ForeignError as error:
                problems.add(str(error))
            except errors.ApiError as error:
                problems.add(f"{error.request}: {error.message}")
        return problems

    async def _secret(self, client: Client) -> Issued:
        """What the Secret holds, once that is a certificate which will do."""
        place = self._place
        while True:
            try:
                found = await client.get(SECRETS, place.secret, place.namespace)
            except errors.NotFoundError:
                text = "is not there; the component config/admission/self-signed has it, empty"
                raise _ForeignError(f"Secret {place.namespace}/{place.secret} {text}") from None
            kept = _issued(found)
            reason = why_another(kept, self._names, self._clock())
            if reason is None:
                return kept
            if (found["metadata"].get("labels") or {}).get(OWNER_LABEL) != OWNER:
                raise _ForeignError(
                    f"Secret {place.namespace}/{place.secret} is not ours (it lacks the label {OWNER_LABEL}) "
                    f"and its certificate will not do: {reason}"
                )
            before = kept.authorities or self._authorities or await self._trusted(client)
            made = issue(self._names, self._clock(), before=before)
            try:
                await client.update(SECRETS, self._body(made, found), place.namespace)
            except errors.ConflictError:
                continue  # another replica was faster
            log = logger.bind(secret=place.secret, reason=reason if found.get("data") else "there was none")
            log.info("A self-signed certificate was made")
            return made

    async def _trusted(self, client: Client) -> bytes:
        """The authorities of ours that a configuration names: others may still show what these signed."""
        for resource in CONFIGURATIONS:
            with suppress(errors.NotFoundError):
                found = await client.get(resource, self._place.configuration)
                for webhook in found.get("webhooks") or []:
                    bundle = _decoded(webhook["clientConfig"].get("caBundle") or "")
                    if is_ours(bundle):
                        return bundle
        return b""

    def _body(self, issued: Issued, secret: Object) -> Object:
        content = (issued.authorities, issued.pair.certificate, issued.pair.key)
        data = {key: base64.b64encode(value).decode() for key, value in zip(_KEYS, content, strict=True)}
        return {**secret, "data": data}

    async def _publish(self, client: Client, resource: Resource, authorities: bytes) -> None:
        """Has the webhooks of a configuration trust these authorities.

        Raises:
            _ForeignError: Somebody else sees to it.
            errors.ApiError: It could not be read or written.
        """
        name = self._place.configuration
        found = await client.get(resource, name)
        where = f"{resource.plural} {name}"
        if INJECTED in (found["metadata"].get("annotations") or {}):
            raise _ForeignError(
                f"{where} has the annotation {INJECTED}: whom to trust there is cert-manager's"
            )
        wanted = base64.b64encode(authorities).decode()
        operations: list[Object] = []
        for index, webhook in enumerate(found.get("webhooks") or []):
            present = webhook["clientConfig"].get("caBundle") or ""
            if present == wanted:
                continue
            if present and not is_ours(_decoded(present)):
                raise _ForeignError(f"{where}: somebody else has set the caBundle of {webhook['name']}")
            path = f"/webhooks/{index}/clientConfig/caBundle"
            operations.append({"op": "add", "path": path, "value": wanted})
        if not operations:
            return
        version = found["metadata"]["resourceVersion"]
        unchanged: Object = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
        await client.patch(resource, name, [unchanged, *operations], how=Patch.JSON)
        logger.bind(configuration=where).info("The API server was told to trust the self-signed certificate")


def _issued(secret: Object) -> Issued:
    data = secret.get("data") or {}
    authorities, certificate, key = (_decoded(data.get(name) or "") for name in _KEYS)
    return Issued(authorities, KeyPair(certificate, key))


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return b""
