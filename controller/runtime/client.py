"""The client of the API server: dictionaries go in and come out.

Called by everything that reads or writes objects. Every request has a deadline, which the server is told as
well, so that a write that we gave up on is not carried out afterwards. `calls.py` says what a request is,
`sending.py` how it is sent and when again, `door.py` by what way.
"""

from collections.abc import Callable, Mapping

import anyio
import orjson
from loguru import logger
from msgspec import Struct
from msgspec.structs import replace

from controller.runtime import errors
from controller.runtime.calls import Call, Object, Patch, Resource
from controller.runtime.door import Door
from controller.runtime.kubeconfig import CredentialsError
from controller.runtime.parsing import loads
from controller.runtime.ratelimit import RateLimits
from controller.runtime.sending import Sender

__all__ = ["Client", "ClientOptions", "CredentialsError", "Listed", "Object", "Patch", "Resource"]

_HELLO_S, _HELLO_MAX_S = 0.5, 10.0


class ClientOptions(Struct, frozen=True, kw_only=True):
    """How to reach the API server and how hard to press it.

    Attributes:
        kubeconfig: Path; empty means $KUBECONFIG, else the pod's service account, else ~/.kube/config.
        qps: Requests a second for each kind, on average; not positive means no limit.
        burst: Requests for each kind that may go out at once.
        deadline_s: Seconds after which a request has failed, the wait for its turn included.
        observe: Called for each answer with the request, HTTP status (`<error>` if there was none) and host.
    """

    kubeconfig: str = ""
    qps: float = 50.0
    burst: int = 300
    deadline_s: float = 30.0
    observe: Callable[[Call, str, str], None] | None = None


class Listed(Struct, frozen=True):
    """A list.

    Attributes:
        items: What was kept of its objects.
        version: The resourceVersion to watch from.
    """

    items: list[Object]
    version: str


class Client:
    """Requests to one API server with one source of credentials.

    All methods raise `errors.ApiError`: a subclass of `StatusError` if the server said no, `NoAnswerError` if
    it did not answer within the deadline, `NotSentError` if it was not asked.
    """

    def __init__(self, door: Door, options: ClientOptions) -> None:
        """Sends nothing yet.

        Args:
            door: The way to the server.
            options: How hard it may be pressed; its kubeconfig is not looked at.
        """
        self._door = door
        self._options = options
        limits = RateLimits(options.qps, options.burst)
        self._sender = Sender(door, limits, deadline_s=options.deadline_s, observe=options.observe)

    @classmethod
    async def connect(cls, options: ClientOptions) -> "Client":
        """Loads the credentials, then says hello to the server until it answers.

        Raises:
            CredentialsError: No usable credentials were found, or the kubeconfig is broken.
        """
        door = await Door.make(options.kubeconfig, options.deadline_s)
        client = cls(door, options)
        delay_s = _HELLO_S
        try:
            while not await client._hello():
                await anyio.sleep(delay_s)
                delay_s = min(delay_s * 2, _HELLO_MAX_S)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await client.close()
            raise
        return client

    async def _hello(self) -> bool:
        """Whether an API server answers."""
        try:
            answer = await self.raw("/version")
            problem = "" if isinstance(answer, dict) and "gitVersion" in answer else "this is no API server"
        except errors.ApiError as error:
            # Who may not even ask for the version may still have all that is needed.
            problem = "" if isinstance(error, errors.ForbiddenError) and error.reason else error.message
        if problem:
            log = logger.bind(host=self.host, proxy=self._door.proxy, error=problem)
            log.warning("The API server cannot be used yet")
        return not problem

    async def close(self) -> None:
        """Closes the connections. Requests under way break."""
        await self._door.aclose()

    @property
    def host(self) -> str:
        """The server's address, as in the kubeconfig, without the scheme."""
        return self._door.host

    def fence(self, lease_left_s: Callable[[], float]) -> None:
        """From now on no write is sent, or left to the server, for longer than the leader's lease lasts.

        Args:
            lease_left_s: Seconds for which no other process can lead; asked before each write.
        """
        self._sender.lease_left_s = lease_left_s

    def for_lease(self, deadline_s: float) -> "Client":
        """A client for the lease itself, by the same door: no fence, no rate limit, a deadline of its own."""
        return Client(self._door, replace(self._options, qps=0.0, deadline_s=deadline_s))

    async def get(
        self, resource: Resource, name: str, namespace: str | None = None, *, subresource: str = ""
    ) -> Object:
        """Reads one object, live."""
        return await self._request(Call("GET", resource, namespace, name, subresource).checked())

    async def list_page(
        self, resource: Resource, params: Mapping[str, str], namespace: str | None = None
    ) -> Object:
        """Reads one page of a list, over all namespaces unless one is given.

        `params` are the API's own query parameters.
        """
        return await self._request(Call("GET", resource, namespace, params=params).checked(named=False))

    async def list_all(
        self,
        resource: Resource,
        params: Mapping[str, str] | None = None,
        *,
        namespace: str | None = None,
        keep: Callable[[Object], Object | None] = lambda item: item,
        page_size: int = 500,
        on_page: Callable[[], None] = lambda: None,
    ) -> Listed:
        """Lists a kind, page by page.

        Args:
            resource: The kind.
            params: The API's own query parameters, such as `labelSelector`.
            namespace: Only this one; None means all.
            keep: What is to be kept of each object, or None; so that a page can be forgotten once it is read.
            page_size: Objects in one answer; fewer where they are large.
            on_page: Called for each page.
        """
        while True:
            wanted = {**(params or {}), "limit": str(page_size)}
            kept: list[Object] = []
            try:
                while True:
                    page = await self._page_that_fits(resource, wanted, namespace)
                    on_page()
                    kept += (found for item in page.get("items") or () if (found := keep(item)) is not None)
                    token = page["metadata"].get("continue")
                    if not token:
                        return Listed(kept, page["metadata"]["resourceVersion"])
                    wanted["continue"] = token
            except errors.GoneError:
                if "continue" not in wanted:
                    raise  # else the rest of this list is compacted away: only a new one helps

    async def _page_that_fits(
        self, resource: Resource, wanted: dict[str, str], namespace: str | None
    ) -> Object:
        """A page of as many objects as `wanted` says; lowers that until they can be taken in."""
        while True:
            try:
                return await self.list_page(resource, wanted, namespace)
            except errors.TooLargeError:
                size = int(wanted["limit"])
                if size == 1:
                    raise
                wanted["limit"] = str(max(1, size // 4))

    async def create(
        self,
        resource: Resource,
        body: Object,
        namespace: str | None = None,
        *,
        name: str = "",
        subresource: str = "",
        is_brief: bool = False,
    ) -> Object:
        """Creates an object, or with `name` and `subresource` posts to that, e.g. `binding`.

        Args:
            resource: The kind.
            body: The object.
            namespace: Its namespace.
            name: Only with `subresource`: the object that it belongs to.
            subresource: Where to post to.
            is_brief: Whether the metadata of the new object is enough for an answer.
        """
        content = orjson.dumps(body)
        call = Call("POST", resource, namespace, name, subresource, content=content, is_brief=is_brief)
        return await self._request(call.checked(named=bool(subresource)))

    async def update(self, resource: Resource, body: Object, namespace: str | None = None) -> Object:
        """Replaces an object; the resourceVersion in `body` must still be the server's."""
        call = Call("PUT", resource, namespace, body["metadata"]["name"], content=orjson.dumps(body))
        return await self._request(call.checked())

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Object | list[Object],
        namespace: str | None = None,
        *,
        subresource: str = "",
        how: Patch = Patch.MERGE,
        is_brief: bool = False,
    ) -> Object:
        """Changes part of an object and returns the whole, or its metadata if that is enough (`is_brief`)."""
        call = Call(
            "PATCH",
            resource,
            namespace,
            name,
            subresource,
            content=orjson.dumps(body),
            content_type=how.value,
            is_brief=is_brief,
        )
        return await self._request(call.checked())

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str,
        version: str = "",
        grace_period_s: int | None = None,
    ) -> None:
        """Deletes the object with this uid, and resourceVersion if it is given; any other stays (409)."""
        preconditions = {"uid": uid, **({"resourceVersion": version} if version else {})}
        body: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions}
        if grace_period_s is not None:
            body["gracePeriodSeconds"] = grace_period_s
        await self._request(Call("DELETE", resource, namespace, name, content=orjson.dumps(body)).checked())

    async def raw(self, path: str) -> Object:
        """Reads a path that belongs to no kind, e.g. `/version`."""
        return await self._request(Call("GET", Resource("", ""), path=path))

    async def watch(
        self,
        resource: Resource,
        params: Mapping[str, str],
        on_line: Callable[[bytes], None],
        *,
        idle_s: float,
        on_open: Callable[[], None] = lambda: None,
    ) -> None:
        """Follows a watch until the server ends it.

        Args:
            resource: The kind.
            params: Query parameters; `watch` is added.
            on_line: Gets each whole line; a line cut short by the end of the stream is dropped.
            idle_s: Seconds without a byte after which the stream counts as dead.
            on_open: Called once the server has granted it.

        Raises:
            errors.NoAnswerError: The stream broke, or was silent for `idle_s`.
            errors.StatusError: The server refused the watch.
        """
        call = Call("GET", resource, params={**params, "watch": "true"})
        await self._sender.follow(call, on_line, idle_s=idle_s, on_open=on_open)

    async def _request(self, call: Call) -> Object:
        response = await self._sender.request(call)
        try:
            answer: Object = loads(response.content)
        except ValueError as error:
            raise errors.NoAnswerError(str(call), f"the answer is no JSON: {error}") from error
        return answer
