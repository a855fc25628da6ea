"""The pods that requests name, by a live look; `Members` asks before a GPU is given away."""

from collections.abc import Sequence
from contextlib import suppress

from controller.kai.names import PODS
from controller.runtime import errors
from controller.runtime.client import Client, Object

_READ_ONE_BY_ONE = 4
"""Requests of which so many are asked for singly; of more a list costs less."""


async def named_pods(client: Client, items: Sequence[Object], namespace: str) -> list[tuple[Object, Object]]:
    """Those of these requests, all of one namespace, whose pods exist, each with its pod.

    How many there are is for whoever makes requests to say: it costs no more than a list, of which only uid,
    node and phase are kept.

    Raises:
        errors.ApiError: The server was not there.
    """
    found: dict[str, Object] = {}
    names = [str((item.get("spec") or {}).get("podName")) for item in items]
    if len(items) <= _READ_ONE_BY_ONE:
        for name in names:
            with suppress(errors.NotFoundError):
                found[name] = await client.get(PODS, name, namespace)
    else:
        wanted = frozenset(names)

        def keep(pod: Object) -> Object | None:
            metadata, status = pod["metadata"], pod.get("status") or {}
            kept = {name: metadata[name] for name in ("name", "namespace", "uid")}
            small: Object = {
                "metadata": kept,
                "spec": {"nodeName": pod["spec"].get("nodeName")},
                "status": {"phase": status.get("phase")},
            }
            return small if metadata["name"] in wanted else None

        listed = await client.list_all(PODS, namespace=namespace, keep=keep)
        found = {pod["metadata"]["name"]: pod for pod in listed.items}
    return [(item, found[name]) for item, name in zip(items, names, strict=True) if name in found]
