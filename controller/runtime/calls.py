"""A request to the API server, as a value: which kind, which object, what to do with it.

Made by `client.py`, sent by `sending.py`. Invariant: a name that no object can have never becomes part of a
path, where a slash or dots would make it the path of something else.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from msgspec import Struct, field

from controller.runtime import errors

Object = dict[str, Any]
"""A Kubernetes object as the API server writes it. What comes from a cache is read-only."""

_PLAIN = re.compile(r"[a-z0-9.-]*").fullmatch
_LONGEST_NAME = 253  # of a DNS subdomain, the widest of Kubernetes' rules for names


class Resource(Struct, frozen=True):
    """A kind, as the API server's paths name it.

    Attributes:
        version: Group and version, e.g. `v1` or `coordination.k8s.io/v1`.
        plural: E.g. `pods`.
        namespaced: Whether its objects live in namespaces.
    """

    version: str
    plural: str
    namespaced: bool = True


class Patch(StrEnum):
    """How a patch is to be applied."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"


class Call(Struct, frozen=True):
    """One request, ready to be sent.

    Attributes:
        method: The HTTP verb.
        resource: The kind; an empty one if there is a `path`.
        namespace: Of the object, or None.
        name: Of the object; empty for the whole collection.
        subresource: E.g. `binding`.
        params: Query parameters.
        content: The body.
        content_type: Of the body.
        path: Instead of a kind, e.g. `/version`.
        is_brief: Whether of an object in the answer its metadata is enough.
    """

    method: str
    resource: Resource
    namespace: str | None = None
    name: str = ""
    subresource: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    content_type: str = "application/json"
    path: str = ""
    is_brief: bool = False

    @property
    def writes(self) -> bool:
        """Whether it may change something."""
        return self.method != "GET"

    @property
    def lists(self) -> bool:
        """Whether it reads a collection."""
        return self.method == "GET" and not self.name and not self.path

    @property
    def url(self) -> str:
        """The path behind the namespace."""
        url = self.resource.plural
        if self.name:
            url += f"/{_quoted(self.name)}"
        return f"{url}/{self.subresource}" if self.subresource else url

    @property
    def location(self) -> str:
        """The whole path."""
        if self.path:
            return self.path
        version = self.resource.version
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        within = f"/namespaces/{_quoted(self.namespace)}" if self.namespace else ""
        return f"{root}{within}/{self.url}"

    def checked(self, *, named: bool = True) -> "Call":
        """The call itself, if its name and namespace may become part of a path.

        Args:
            named: Whether it is one object that is meant: an empty name would mean all of them.

        Raises:
            errors.ImpossibleNameError: They may not.
        """
        if named:
            self._check("name", self.name)
        if self.namespace is not None and self.resource.namespaced:
            self._check("namespace", self.namespace)
        return self

    def _check(self, field_name: str, value: str) -> None:
        segment = value not in ("", ".", "..") and "/" not in value and "%" not in value
        if segment and len(value) <= _LONGEST_NAME and value.isprintable():
            return
        shown = value if len(value) <= _LONGEST_NAME else f"{value[:_LONGEST_NAME]}…"
        text = f"no object of kind {self.resource.plural} can have the {field_name} {shown!r}"
        raise errors.ImpossibleNameError(str(self), text, code=404, reason="NotFound")

    def __str__(self) -> str:
        if self.path:
            return f"{self.method} {self.path}"
        kind = f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural
        target = "/".join(part for part in (self.namespace, self.name) if part)
        return f"{self.method} {kind} {target}".rstrip()


def _quoted(segment: str) -> str:
    """As it may stand in a path; nearly all names may as they are, and quoting takes longer than looking."""
    return segment if _PLAIN(segment) else quote(segment, safe="")
