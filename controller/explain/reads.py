"""Reading with partial rights: what was found, and what may not be read and why.

Called by the verbs, which go on with what there is. Invariant: what could not be read is never taken for
what is not there; it is noted once, in words, under `missing`.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import anyio
from msgspec import Struct

from controller.kai.names import is_object_name
from controller.runtime import errors
from controller.runtime.client import Client, ClientOptions, Object, Resource
from controller.runtime.door import Door


class Read(Struct, frozen=True):
    """What a read has brought.

    Attributes:
        items: The objects that were found.
        problem: Why nobody knows whether there are more, as a sentence; empty if these are all.
        is_unknown_kind: Whether that is because the server does not know the kind.
    """

    items: tuple[Object, ...] = ()
    problem: str = ""
    is_unknown_kind: bool = False

    @property
    def one(self) -> Object | None:
        """The first one, or None."""
        return self.items[0] if self.items else None

    @property
    def is_absent(self) -> bool:
        """Whether it is certain that there is none."""
        return not self.items and not self.problem


class Reads:
    """Reads from one API server with a user's own rights; each refusal is noted.

    Attributes:
        missing: What could not be read, as sentences, in the order in which it was asked for.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._answered = False
        self.missing: list[str] = []

    async def get(
        self, resource: Resource, name: str, namespace: str | None = None, *, may_be_unknown: bool = False
    ) -> Read:
        """Reads one object.

        Args:
            resource: The kind.
            name: Of the object.
            namespace: Its namespace.
            may_be_unknown: Whether it is not noted that the server does not know the kind.

        Raises:
            errors.ApiError: The server does not answer, or does not know us, and never has.
        """
        if not is_object_name(name):
            return Read()
        where = f"{namespace}/{name}" if namespace else name
        try:
            found = await self._client.get(resource, name, namespace)
        except errors.NotFoundError as error:
            self._answered = True
            if _names_an_object(error):
                return Read()
            if may_be_unknown:
                return Read(problem=error.message, is_unknown_kind=True)
            return self._noted(error, f"read {resource.plural} {where}")
        except errors.ApiError as error:
            return self._noted(error, f"read {resource.plural} {where}")
        self._answered = True
        return Read((found,))

    async def find(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        params: Mapping[str, str] | None = None,
        keep: Callable[[Object], Object | None] = lambda item: item,
    ) -> Read:
        """Lists a kind.

        Args:
            resource: The kind.
            namespace: Only this one; None means all.
            params: The API's own query parameters, such as `labelSelector`.
            keep: What is to be kept of each object, or None.

        Raises:
            errors.ApiError: The server does not answer, or does not know us, and never has.
        """
        where = "" if not resource.namespaced else f" in {namespace}" if namespace else " in all namespaces"
        try:
            listed = await self._client.list_all(resource, params, namespace=namespace, keep=keep)
        except errors.ApiError as error:
            return self._noted(error, f"list {resource.plural}{where}")
        self._answered = True
        return Read(tuple(listed.items))

    def note(self, sentence: str) -> None:
        """Notes something that could not be read, once."""
        if sentence not in self.missing:
            self.missing.append(sentence)

    def _noted(self, error: errors.ApiError, what: str) -> Read:
        says_no = isinstance(error, errors.StatusError) and not isinstance(error, errors.UnauthorizedError)
        if not says_no and not self._answered:
            raise error
        self._answered = True
        match error:
            case errors.ForbiddenError():
                sentence = f"may not {what}: {error.message}"
            case errors.NotFoundError():
                sentence = f"cannot {what}: the API server does not know this kind"
            case _:
                sentence = f"could not {what}: {error.message}"
        self.note(sentence)
        return Read(problem=sentence, is_unknown_kind=isinstance(error, errors.NotFoundError))


def _names_an_object(error: errors.NotFoundError) -> bool:
    """Whether it is the object that is not there, and not its kind, or its whole group."""
    details = error.body.get("details")
    named = isinstance(details, Mapping) and bool(details.get("name"))
    return named or isinstance(error, errors.ImpossibleNameError)


@asynccontextmanager
async def connected(
    kubeconfig: str = "", context: str = "", *, deadline_s: float = 10.0
) -> AsyncIterator[tuple[Reads, str]]:
    """The way to the API server for the block, and the namespace that the kubeconfig's context is in.

    Args:
        kubeconfig: Path; empty means $KUBECONFIG, else the pod's account, else ~/.kube/config.
        context: Of the kubeconfig; empty means its current one.
        deadline_s: Of each request.

    Raises:
        CredentialsError: There are none that can be used.
    """
    door = await Door.make(kubeconfig, deadline_s, context)
    client = Client(door, ClientOptions(kubeconfig=kubeconfig, qps=0.0, deadline_s=deadline_s))
    try:
        yield Reads(client), door.namespace
    finally:
        with anyio.CancelScope(shield=True):
            await client.close()
