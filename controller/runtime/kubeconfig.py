"""Picks the current context out of kubeconfigs, and makes it a kubeconfig that stands alone.

Called by `credentials.py`, which reads the files. As in Go's clients the first of several files wins, and a
path is relative to the file that it stands in. Invariant: no value of a kubeconfig gets into an error, since
a token may stand anywhere in a broken one: errors name files and fields.
"""

import base64
import binascii
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Object = dict[str, Any]

_FILES = {"cluster": ("certificate-authority",), "user": ("client-certificate", "client-key")}
"""Fields that name a file; with `-data` behind them they are its content in base64."""


_IMPERSONATION = ("as", "as-uid", "as-groups", "as-user-extra")


class CredentialsError(ValueError):
    """There are no credentials, or they cannot be read."""


def standalone(configs: Sequence[tuple[Path, object]], directory: Path, wanted: str = "") -> Object:
    """A kubeconfig of one context, with absolute paths and nothing embedded.

    Args:
        configs: The kubeconfigs with their paths, as they were read.
        directory: Where embedded certificates and keys are written; the caller removes it.
        wanted: The context; empty means the current one.

    Raises:
        CredentialsError: A part is missing, or is not what it should be.
    """
    read = [(path, _mapping(config, path, "it")) for path, config in configs]
    named = (config["current-context"] for _, config in read if config.get("current-context"))
    current = wanted or next(named, None)
    if current is None:
        raise CredentialsError(f"{_names(configs)}: there is no current-context")
    if wanted and not _has(read, wanted):
        raise CredentialsError(f"{_names(configs)}: there is no context of the name that was asked for")
    context, _ = _find(read, "context", current)
    cluster, path = _find(read, "cluster", context.get("cluster"))
    if not _is_url(cluster.get("server")):
        raise CredentialsError(f"{path}: the cluster's server is no URL")
    cluster = _with_files(cluster, "cluster", path, directory)
    user: Object = {}
    if context.get("user"):
        user, path = _find(read, "user", context["user"])
        user = _with_files(user, "user", path, directory)
        _check_user(user, path)
    name = "current"
    chosen = {"cluster": name, "user": name}
    if isinstance(context.get("namespace"), str) and context["namespace"]:
        chosen["namespace"] = context["namespace"]
    return {
        "current-context": name,
        "contexts": [{"name": name, "context": chosen}],
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
    }


def _is_url(server: object) -> bool:
    try:
        parts = urlsplit(server if isinstance(server, str) else "")
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _names(configs: Sequence[tuple[Path, object]]) -> str:
    return ", ".join(str(path) for path, _ in configs)


def _mapping(value: object, path: Path, what: str) -> Object:
    if not isinstance(value, dict):
        raise CredentialsError(f"{path}: {what} is no mapping")
    return value


def _has(read: Sequence[tuple[Path, Object]], context: str) -> bool:
    """Whether one of the files has a context of this name."""
    listed = [config.get("contexts") for _, config in read]
    entries = [entry for part in listed if isinstance(part, list) for entry in part]
    return any(isinstance(entry, dict) and entry.get("name") == context for entry in entries)


def _find(read: Sequence[tuple[Path, Object]], kind: str, name: object) -> tuple[Object, Path]:
    """The first context, cluster or user of this name, and the file that it stands in."""
    for path, config in read:
        entries = config.get(f"{kind}s") or []
        if not isinstance(entries, list):
            raise CredentialsError(f"{path}: {kind}s is no list")
        for entry in entries:
            if isinstance(entry, dict) and entry.get("name") == name:
                return _mapping(entry.get(kind), path, f"a {kind} of the current context"), path
    raise CredentialsError(f"{_names(read)}: the {kind} of the current context is missing")


def _with_files(part: Object, kind: str, path: Path, directory: Path) -> Object:
    """The part with each file in its place: absolute, or written out if it is embedded."""
    part = dict(part)
    for field in _FILES[kind]:
        embedded = part.pop(f"{field}-data", None)
        if embedded:
            part[field] = str(_write(embedded, f"{path}: {field}-data of the {kind}", directory / field))
        elif part.get(field):
            part[field] = _absolute(part[field], path)
            if not os.path.isfile(part[field]):  # noqa: PTH113 -- of a Path it raises, for what is no path
                raise CredentialsError(f"{path}: {field} of the {kind} is no file")
    return part


def _write(embedded: object, what: str, target: Path) -> Path:
    try:
        text = str(embedded)
        content = text.encode() if "-----" in text else base64.b64decode(text)
    except (binascii.Error, ValueError):
        content = b""
    if not content:
        raise CredentialsError(f"{what} is not base64")
    target.touch(mode=0o600)
    target.write_bytes(content)
    return target


def _check_user(user: Object, path: Path) -> None:
    if "username" in user or "password" in user:
        raise CredentialsError(
            f"{path}: the user has username and password, which Kubernetes no longer takes"
        )
    acts_as = [field for field in _IMPERSONATION if user.get(field)]
    if acts_as:
        raise CredentialsError(
            f"{path}: the user impersonates another one ({', '.join(acts_as)}), which is not done here; "
            "leave that out, and name a user who has the rights himself"
        )
    if user.get("tokenFile"):
        user["tokenFile"] = _absolute(user["tokenFile"], path)
    if user.get("exec"):
        command = user["exec"] = dict(_mapping(user["exec"], path, "exec of the user"))
        program = str(command.get("command") or "")
        if not program:
            raise CredentialsError(f"{path}: exec of the user has no command")
        # A bare name is looked for in PATH; a relative path is relative to the kubeconfig.
        command["command"] = _absolute(program, path) if "/" in program else program


def _absolute(value: object, path: Path) -> str:
    return str(path.absolute().parent / str(value))
