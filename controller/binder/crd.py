"""Whether the cluster's CRD fits this version: a server drops the fields that its CRD does not have."""

from collections.abc import Iterator

import anyio
from loguru import logger

from controller.kai.names import BIND_REQUESTS
from controller.kai.request import SPEC_FIELDS
from controller.runtime import errors
from controller.runtime.client import Client, Object

_AFTER_S = 5.0
"""The schema is large, and where little CPU is allowed the first binds go before it."""


class SchemaCheck:
    """Compares the schema once, a moment after the start."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def run(self) -> None:
        """Waits a moment, compares, and ends."""
        await anyio.sleep(_AFTER_S)
        await warn_of_differences(self._client)


async def warn_of_differences(client: Client) -> None:
    """Says, once, what the server will drop of what is written, and what it may hold that is not read."""
    try:
        document = await client.raw(f"/openapi/v3/apis/{BIND_REQUESTS.version}")
    except errors.ApiError as error:
        # Without the CRD the cache complains; a schema that cannot be read is no reason to stop.
        logger.bind(error=error.message).debug("The schema of BindRequests cannot be read")
        return
    for schema in (document.get("components") or {}).get("schemas", {}).values():
        kinds = [kind.get("kind") for kind in schema.get("x-kubernetes-group-version-kind") or ()]
        if "BindRequest" in kinds:
            _compare(schema.get("properties") or {})
            return


def _compare(properties: Object) -> None:
    status = (properties.get("status") or {}).get("properties") or {}
    if "conditions" not in status:
        logger.warning(
            "The installed CRD of BindRequests is the Go binder's: the server drops conditions, "
            "so only status.reason says what failed. Apply config/crd to see more"
        )
    present = set(_paths(properties.get("spec") or {}))
    missing, unknown = sorted(SPEC_FIELDS - present), sorted(present - SPEC_FIELDS)
    if missing:
        logger.bind(fields=missing).warning(
            "The installed CRD of BindRequests is older than this binder: the server drops these fields, "
            "whatever the scheduler writes. Apply config/crd"
        )
    if unknown:
        logger.bind(fields=unknown).warning(
            "The installed CRD of BindRequests is newer than this binder: these fields are not read"
        )
    if not missing and not unknown and "conditions" in status:
        logger.info("The installed CRD of BindRequests fits this binder")


def _paths(schema: Object, prefix: str = "") -> Iterator[str]:
    """The fields of an object, and of KAI's own objects in it; devices of claims are Kubernetes' own."""
    for name, part in (schema.get("properties") or {}).items():
        path = f"{prefix}{name}"
        yield path
        inner = part.get("items", part)
        if path in {"receivedGPU", "selectedFractionalGpuGroups"}:
            yield from _paths(inner, f"{path}.")
