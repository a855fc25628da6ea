"""What is to be explained: reads the name that was given, and finds the request and the pod that it means."""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from controller.explain.reads import Read, Reads
from controller.explain.verbs import CannotTellError
from controller.kai.names import BIND_REQUESTS, PODS, is_object_name
from controller.kai.pods import is_owner
from controller.kai.reasons import Phase
from controller.kai.request import BindStatus
from controller.runtime.client import Object

_KINDS = {
    **dict.fromkeys(("pod", "pods", "po"), "pod"),
    **dict.fromkeys(("bindrequest", "bindrequests", "br"), "request"),
}


class Target(Struct, frozen=True):
    """A name as it was given.

    Attributes:
        kind: `pod`, `request`, or empty for either.
        namespace: Empty if it was not said.
        name: Of the object.
    """

    kind: str
    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str, namespace: str = "") -> "Target":
        """Reads NAME, NAMESPACE/NAME, KIND/NAME or NAMESPACE/KIND/NAME.

        Args:
            text: As given.
            namespace: As given beside it; empty if it was not.

        Raises:
            CannotTellError: It is none of these.
        """
        parts = text.split("/")
        kind = ""
        if len(parts) > 1 and parts[-2].lower() in _KINDS:
            kind = _KINDS[parts.pop(-2).lower()]
        if len(parts) > 2 or not all(map(is_object_name, (*parts, namespace or "x"))):
            raise CannotTellError(
                f"{text!r} is no name of a pod or BindRequest; give NAME, NAMESPACE/NAME, pod/NAME or br/NAME"
            )
        if len(parts) == 2 and namespace and parts[0] != namespace:
            raise CannotTellError(f"{text} is in namespace {parts[0]}, but --namespace says {namespace}")
        return cls(kind, parts[0] if len(parts) == 2 else namespace, parts[-1])


class Found(Struct, frozen=True):
    """A request and its pod, or one of them.

    Attributes:
        namespace: Of both.
        request: The one to explain; None if there is none, or it may not be read.
        pod: The pod of its name.
        pod_name: Its name.
        requests: All that name the pod, so far as they may be listed.
        requests_problem: Why the requests could not be read; empty if they could.
        is_of_pod: Whether the request was made for this very pod.
        namesake: A pod that has the name which was given, though the request is for another one; or empty.
        stale: Requests for an earlier pod of the name, where the present pod is what is to be explained.
    """

    namespace: str
    request: Object | None
    pod: Read
    pod_name: str
    requests: tuple[Object, ...] = ()
    requests_problem: str = ""
    is_of_pod: bool = True
    namesake: str = ""
    stale: tuple[Object, ...] = ()

    @property
    def names(self) -> Iterable[str]:
        """Names of the pod and the request, each once."""
        own = self.request["metadata"]["name"] if self.request is not None else self.pod_name
        return dict.fromkeys(name for name in (self.pod_name, own) if is_object_name(name))


async def find(reads: Reads, target: Target, namespace: str) -> Found:
    """Finds what a name means.

    Args:
        reads: Where to look.
        target: The name.
        namespace: To look in.

    Raises:
        CannotTellError: There is no such thing, or it may not be read.
    """
    if target.kind != "pod":
        read = await reads.get(BIND_REQUESTS, target.name, namespace)
        if read.one is not None:
            found = await _of_request(reads, read.one, namespace)
            if target.kind == "request":
                return found
            if found.pod_name == target.name:
                return _meant(found)
            if (await reads.get(PODS, target.name, namespace)).one is not None:
                return replace(found, namesake=target.name)
            return found
        if target.kind == "request":
            raise CannotTellError(read.problem or f"there is no BindRequest {namespace}/{target.name}")
    pod = await reads.get(PODS, target.name, namespace)
    requests = await _requests_for(reads, target.name, namespace)
    if pod.one is None and not requests.items:
        if pod.problem or requests.problem:
            raise CannotTellError("; ".join(filter(None, (pod.problem, requests.problem))))
        kinds = "no pod" if target.kind == "pod" else "neither a pod nor a BindRequest"
        raise CannotTellError(f"there is {kinds} {namespace}/{target.name}")
    pod = await _up_to_date(reads, pod, requests.items)
    return _of_pod(_found(namespace, target.name, pod, requests, None))


async def _of_request(reads: Reads, request: Object, namespace: str) -> Found:
    spec = request.get("spec")
    name = spec.get("podName") if isinstance(spec, dict) else None
    pod_name = name if isinstance(name, str) else ""
    pod = await reads.get(PODS, pod_name, namespace)
    requests = await _requests_for(reads, pod_name, namespace)
    pod = await _up_to_date(reads, pod, (request, *requests.items))
    return _found(namespace, pod_name, pod, requests, request)


async def _requests_for(reads: Reads, pod_name: str, namespace: str) -> Read:
    """All requests that name the pod; at least the one of its name, as the scheduler names them."""
    if not pod_name:
        return Read()

    def keep(item: Object) -> Object | None:
        spec = item.get("spec")
        return item if isinstance(spec, dict) and spec.get("podName") == pod_name else None

    listed = await reads.find(BIND_REQUESTS, namespace, keep=keep)
    if not listed.problem:
        return listed
    one = (await reads.get(BIND_REQUESTS, pod_name, namespace)).one
    found = () if one is None or keep(one) is None else (one,)
    return Read(found, listed.problem)


def _found(namespace: str, pod_name: str, pod: Read, requests: Read, request: Object | None) -> Found:
    if request is None:
        request = min(requests.items, key=lambda item: _rank(item, pod.one), default=None)
    is_of_pod = pod.one is None or request is None or is_owner(request, pod.one)
    return Found(namespace, request, pod, pod_name, requests.items, requests.problem, is_of_pod)


async def _up_to_date(reads: Reads, pod: Read, requests: Iterable[Object]) -> Read:
    """The pod, read again if it has no node and one of its requests has succeeded: it got there meanwhile."""
    if pod.one is None or (pod.one.get("spec") or {}).get("nodeName"):
        return pod
    done = (item for item in requests if BindStatus.of(item).phase == Phase.SUCCEEDED)
    if not any(is_owner(item, pod.one) for item in done):
        return pod
    again = await reads.get(PODS, pod.one["metadata"]["name"], pod.one["metadata"].get("namespace"))
    return pod if again.problem else again


def _of_pod(found: Found) -> Found:
    """What is of the present pod; requests of earlier ones of its name are set aside."""
    pod = found.pod.one
    if pod is None:
        return found
    own = tuple(item for item in found.requests if is_owner(item, pod))
    stale = tuple(item for item in found.requests if not is_owner(item, pod))
    again = _found(found.namespace, found.pod_name, found.pod, Read(own, found.requests_problem), None)
    return replace(again, stale=stale)


def _meant(found: Found) -> Found:
    """Of a name that pod and request have: the pod, if it has a node or a request of its own."""
    pod = found.pod.one
    if pod is None or found.is_of_pod:
        return found
    has_own = any(is_owner(item, pod) for item in found.requests)
    return _of_pod(found) if has_own or (pod.get("spec") or {}).get("nodeName") else found


def _rank(item: Object, pod: Object | None) -> tuple[bool, bool, str]:
    """Which of several requests is the pod's own: one made for it, of its name, the newest."""
    metadata = item["metadata"]
    made = str(metadata.get("creationTimestamp") or "")
    newest_first = "".join(chr(0x7F - ord(char)) if char.isascii() else "\x7f" for char in made)
    mine = pod is None or is_owner(item, pod)
    named = pod is not None and metadata["name"] == pod["metadata"]["name"]
    return (not mine, not named, newest_first)
