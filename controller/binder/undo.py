"""What a failed attempt takes back: the work of its plugins, in reverse, and the labels of its GPU groups.

The pipeline calls it for an attempt that failed, and for a pod that an earlier attempt may have left its work
on. Invariant: everything that can be taken back is, whatever else could not be; what stays is in the message.
"""

from collections.abc import Mapping

from loguru import logger
from msgspec.structs import replace

from controller.binder.assignment import Assignment, patch_pod
from controller.binder.chain import Chain
from controller.kai.names import PODS
from controller.kai.outcome import Failed
from controller.kai.sharing import groups_of_pod, is_group_label
from controller.plugins.base import BindContext
from controller.runtime import errors
from controller.runtime.client import Client


class Undo:
    """Takes back the work of attempts."""

    def __init__(self, client: Client, assignment: Assignment) -> None:
        self._client = client
        self._assignment = assignment

    async def undo(self, context: BindContext, chain: Chain, failure: Failed) -> Failed:
        """Takes back what there is of a request's work.

        Args:
            context: The attempt; `final` says whether no further one is due.
            chain: Its plugins.
            failure: Why the pod is not bound.

        Returns:
            The failure, with what could not be taken back.

        Raises:
            errors.ApiError: The server was not there; the attempt is repeated, and this with it.
        """
        problems = await chain.rollback(context)
        problems += await self._take_off_labels(context)
        return replace(failure, message="; ".join((failure.message, *problems)))

    async def _take_off_labels(self, context: BindContext) -> list[str]:
        """Takes the group labels off a pod that did not get to its node: no GPU is held for it there."""
        before = context.request.is_fraction and self._assignment.labels_come_first
        if not before and not groups_of_pod(context.pod):
            return []  # it neither met us with labels, nor was given them before the binding
        try:
            await self._take_off(context)
        except errors.ApiError as error:
            if error.transient:
                raise
            logger.bind(error=error.message).error("The GPU groups could not be taken off a pod")
            return [f"the pod keeps its GPU group labels: {error.message}"]
        return []

    async def _take_off(self, context: BindContext) -> None:
        request = context.request
        try:
            found = await self._client.get(PODS, request.pod_name, request.namespace)
        except errors.NotFoundError:
            return
        metadata, node_name = found["metadata"], found["spec"].get("nodeName")
        if metadata["uid"] != context.pod["metadata"]["uid"] or node_name == request.node_name:
            return
        labels: Mapping[str, str] = metadata.get("labels") or {}
        # On another node it may have groups of that one.
        names = [
            name
            for name, value in labels.items()
            if is_group_label(name) and (not node_name or value in request.gpu_groups)
        ]
        if names:
            await patch_pod(self._client, found, {"labels": dict.fromkeys(names)})
