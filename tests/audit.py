"""What the API server's audit log says of one client's requests."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

from controller.runtime.client import Object

CREDENTIAL = "authentication.kubernetes.io/credential-id"


def credential_of(kubeconfig: Path) -> str:
    """The id of the token in a kubeconfig, as the audit log names it."""
    token = json.loads(kubeconfig.read_text())["users"][0]["user"]["token"]
    payload = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return f"JTI={claims['jti']}"


def answered(log: Path, *, credential: str = "") -> Iterator[Object]:
    """The requests that were answered, in order; of one token if it is given."""
    for line in log.read_text().splitlines():
        try:
            entry: Object = json.loads(line)
        except json.JSONDecodeError:
            continue  # the last one, not written whole yet
        ids = ((entry.get("user") or {}).get("extra") or {}).get(CREDENTIAL) or []
        if entry.get("stage") == "ResponseComplete" and (not credential or credential in ids):
            yield entry


def bindings(log: Path, namespace: str) -> list[str]:
    """The pods of a namespace that were bound, once for each time."""
    return [
        entry["objectRef"]["name"]
        for entry in answered(log)
        if entry["verb"] == "create"
        and (entry.get("objectRef") or {}).get("subresource") == "binding"
        and entry["objectRef"]["namespace"] == namespace
        and entry["responseStatus"]["code"] < 300
    ]
