"""How a pod gets its node: the Binding, what travels with it, and what to make of an unclear answer.

The pipeline calls `assign` once all plugins are content. Invariants: the Binding carries the pod's uid, so
that a pod which was replaced is refused; what travels with it is legal, since the server does not look at it
and a pod with an illegal annotation can never be updated again; and an answer that leaves it open whether the
pod is on its node is followed by reading the pod until that is known.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import anyio
import orjson
from loguru import logger
from msgspec import Struct

from controller.binder.decisions import judged_after, leaves_it_open
from controller.binder.objects import size_of
from controller.kai.names import NUMA_MEMORY_GROUPS, NUMA_PLACEMENT, PODS, RECEIVED_RESOURCE_TYPE
from controller.kai.outcome import Failed, Ready, failed_by
from controller.kai.pods import ANNOTATIONS_LIMIT_BYTES, full_name
from controller.kai.reasons import Reason
from controller.kai.request import BindRequest
from controller.kai.sharing import groups_of_pod, is_group_label
from controller.runtime import errors
from controller.runtime.client import Client, Object

_RESOLVE_BACKOFF_S = 0.25
_RESOLVE_MAX_BACKOFF_S = 5.0

_ADDED_LIMIT_BYTES = 128 * 1024
"""Room that each pod has for it which is not read live: see `objects.LARGE_ANNOTATIONS_BYTES`."""

Waiting = Callable[[str], AbstractAsyncContextManager[None]]


class Wish(Struct, frozen=True, kw_only=True):
    """What is to become of a pod.

    Attributes:
        request: Whose node the pod is to be on.
        pod: The pod as it was read.
        labels: Of its GPU groups.
        annotations: Of plugins.
    """

    request: BindRequest
    pod: Object
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @property
    def all_annotations(self) -> dict[str, str]:
        """Those of plugins and ours, which go before them."""
        annotations = {**self.annotations, RECEIVED_RESOURCE_TYPE: self.request.resource_type}
        predicted = _numa_annotations(self.request)
        return annotations | {name: value for name, value in predicted.items() if value is not None}


class Assigned(Struct, frozen=True):
    """How a Binding ended.

    Attributes:
        verdict: On the pod.
        was_found: Whether the pod is on its node, but perhaps not by this Binding.
    """

    verdict: Ready | Failed
    was_found: bool = False


class Assignment:
    """Assigns pods to nodes, one after the other or many at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._labels_are_copied: bool | None = None  # by the server, from a Binding; None until it was seen

    @property
    def labels_come_first(self) -> bool:
        """Whether pods are labelled before they are bound, so that a failed bind leaves labels."""
        return self._labels_are_copied is False

    async def assign(self, wish: Wish, waiting: Waiting) -> Assigned:
        """Binds a pod.

        Args:
            wish: What is to become of it.
            waiting: Around each wait for somebody else.

        Raises:
            errors.ApiError: The server was not there, and the pod is on no node; or it does not say whether.
        """
        request, annotations = wish.request, wish.all_annotations
        problem = _no_room(wish.pod, annotations)
        if problem is not None:
            return Assigned(problem)
        try:
            await self._patch_before_binding(wish)
            binding = _binding(wish, annotations)
            await self._client.create(
                PODS, binding, request.namespace, name=request.pod_name, subresource="binding"
            )
        except errors.ApiError as error:
            if leaves_it_open(error):
                return await self._resolve(wish, error, waiting)
            if error.transient:
                raise
            return Assigned(failed_by(error))
        if wish.labels and self._labels_are_copied is None:
            await self._see_whether_labels_are_copied(wish)
        return Assigned(Ready(f"pod {request.full_pod_name} is on node {request.node_name}"))

    async def _patch_before_binding(self, wish: Wish) -> None:
        """What a Binding cannot do: change what an earlier bind left; on older servers, label the pod."""
        delta: Object = {}
        present_annotations: Mapping[str, str] = wish.pod["metadata"].get("annotations") or {}
        stale = [name for name, value in _numa_annotations(wish.request).items() if value is None]
        if not present_annotations.keys().isdisjoint(stale):
            delta["annotations"] = {name: None for name in stale if name in present_annotations}
        # A group that is not the pod's would be reserved for as long as the pod lives; and of the labels of a
        # Binding the server copies only those that the pod does not have.
        present: Mapping[str, str] = wish.pod["metadata"].get("labels") or {}
        changed = {
            name: wish.labels.get(name)
            for name, value in present.items()
            if is_group_label(name) and wish.labels.get(name) != value
        }
        if self.labels_come_first:
            changed |= wish.labels
        if changed:
            delta["labels"] = changed
        if delta and not await self._is_assigned(wish.request):
            await patch_pod(self._client, wish.pod, delta)

    async def _is_assigned(self, request: BindRequest) -> bool:
        """Whether, by a live look, the pod is on a node: then it is not ours to change."""
        try:
            pod = await self._client.get(PODS, request.pod_name, request.namespace)
        except errors.NotFoundError:
            return True
        return bool(pod["spec"].get("nodeName"))

    async def _see_whether_labels_are_copied(self, wish: Wish) -> None:
        """Looks at the first pod that was bound with labels, and labels it if the server did not.

        Whatever fails here is made good by the reconciler of groups: the pod is bound.
        """
        try:
            pod = await self._client.get(PODS, wish.request.pod_name, wish.request.namespace)
            present = pod["metadata"].get("labels") or {}
            copied = wish.labels.items() <= present.items()
            # A pod that had them before says nothing of the server.
            if not copied or not groups_of_pod(wish.pod):
                self._labels_are_copied = copied
            if not copied:
                await patch_pod(self._client, wish.pod, {"labels": wish.labels})
        except errors.ApiError as error:
            logger.bind(error=error.message).warning("It could not be seen whether a pod has its labels")

    async def _resolve(self, wish: Wish, error: errors.ApiError, waiting: Waiting) -> Assigned:
        """Finds out by live reads whether a bind that was answered with an error happened all the same."""
        request = wish.request
        pod = await self._read_pod(request, error, waiting)
        verdict = judged_after(error, request, pod, wish.pod["metadata"]["uid"])
        if verdict is None:
            raise error
        labels: Mapping[str, str] = (pod or wish.pod)["metadata"].get("labels") or {}
        is_another = isinstance(error, errors.ConflictError) or not wish.labels.items() <= labels.items()
        return Assigned(verdict, is_another)

    async def _read_pod(
        self, request: BindRequest, cause: errors.ApiError, waiting: Waiting
    ) -> Object | None:
        """Reads the pod, for as long as it takes the server to answer; None if there is none."""
        delay_s = 0.0
        async with AsyncExitStack() as wait:
            while True:
                try:
                    return await self._client.get(PODS, request.pod_name, request.namespace)
                except errors.NotFoundError:
                    return None
                except errors.ForbiddenError:
                    raise  # without the right to look, nothing may be taken back
                except errors.ApiError as error:
                    log = logger.bind(cause=cause.message, error=error.message)
                    log.warning("It is unclear whether the pod was bound, and it cannot be read yet")
                if not delay_s:  # one wait, however often it is tried: what is measured is all of it
                    await wait.enter_async_context(waiting("the API server to say whether the pod is bound"))
                delay_s = min(max(delay_s * 2, _RESOLVE_BACKOFF_S), _RESOLVE_MAX_BACKOFF_S)
                await anyio.sleep(delay_s)


async def patch_pod(client: Client, pod: Object, delta: Object) -> None:
    """Changes the metadata of this very pod.

    Raises:
        errors.ApiError: It is another one by now, or the server refused.
    """
    metadata = pod["metadata"]
    body: Object = {"metadata": {"uid": metadata["uid"], **delta}}
    await client.patch(PODS, metadata["name"], body, metadata["namespace"])


def _numa_annotations(request: BindRequest) -> dict[str, str | None]:
    """What the scheduler predicts of NUMA nodes, by annotation; None where it says nothing (B-42, N-46)."""
    zones, groups = request.numa_zones, request.numa_memory_groups
    return {
        NUMA_PLACEMENT: orjson.dumps(zones).decode() if zones else None,
        NUMA_MEMORY_GROUPS: orjson.dumps(groups).decode() if groups is not None else None,
    }


def _binding(wish: Wish, annotations: Mapping[str, str]) -> Object:
    """The server copies the annotations, newer ones the labels too, in the same write as the node."""
    metadata = {name: wish.pod["metadata"][name] for name in ("name", "namespace", "uid")}
    binding: Object = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {**metadata, "annotations": annotations},
        "target": {"apiVersion": "v1", "kind": "Node", "name": wish.request.node_name},
    }
    if wish.labels:
        binding["metadata"]["labels"] = wish.labels
    return binding


def _no_room(pod: Object, added: Mapping[str, str]) -> Failed | None:
    """Why the pod cannot have these annotations as well, if it cannot."""
    name, added_bytes = f"pod {full_name(pod)}", size_of(added)
    if added_bytes > _ADDED_LIMIT_BYTES:
        text = f"{name} would get {added_bytes} bytes of annotations, more than {_ADDED_LIMIT_BYTES}"
        return Failed(Reason.INVALID_REQUEST, text, retry=False)
    present: Mapping[str, str] = pod["metadata"].get("annotations") or {}
    kept_bytes = size_of({key: value for key, value in present.items() if key not in added})
    if kept_bytes + added_bytes <= ANNOTATIONS_LIMIT_BYTES:
        return None
    text = f"{name} has {kept_bytes} bytes of annotations of its own and would get {added_bytes}"
    return Failed(Reason.ANNOTATIONS_TOO_LONG, f"{text}; {ANNOTATIONS_LIMIT_BYTES} are allowed in all")
