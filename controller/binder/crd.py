"""Whether the cluster's CRD can hold what we write: the Go binder's own has no conditions."""

from loguru import logger

from controller.kai.names import BIND_REQUESTS
from controller.runtime import errors
from controller.runtime.client import Client


async def warn_if_status_is_pruned(client: Client) -> None:
    """Says so, once, if the server will drop the conditions of a request's status."""
    try:
        document = await client.raw(f"/openapi/v3/apis/{BIND_REQUESTS.version}")
    except errors.ApiError as error:
        # Without the CRD the cache complains; a schema that cannot be read is no reason to stop.
        logger.bind(error=error.message).debug("The schema of BindRequests cannot be read")
        return
    for schema in (document.get("components") or {}).get("schemas", {}).values():
        kinds = [kind.get("kind") for kind in schema.get("x-kubernetes-group-version-kind") or ()]
        if "BindRequest" in kinds:
            status = (schema.get("properties") or {}).get("status") or {}
            if "conditions" not in (status.get("properties") or {}):
                logger.warning(
                    "The installed CRD of BindRequests is the Go binder's: the server drops conditions, "
                    "so only status.reason says what failed. Apply config/crd to see more"
                )
            return
