"""A tenant who means no good, with a token and rights of his own, and what he may try on others."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

from controlplane import ControlPlane
from controlplane.client import Client

from controller.runtime.client import Object
from tests.cluster import MERGE
from tests.sharing import Agents, Sharing

TENANT = "tenant"
RULES: Sequence[Object] = (
    {"apiGroups": [""], "resources": ["pods", "configmaps", "persistentvolumeclaims"], "verbs": ["*"]},
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["*"]},
    {"apiGroups": ["scheduling.run.ai"], "resources": ["bindrequests"], "verbs": ["*"]},
)
"""What he may do in his namespace; nobody should be given the last one."""

HOSTILE_TEXT = "x\x1b[31m\x9b31m\u202e\nPhase:  Succeeded\r\u2028\x07"
"""Escape sequences, marks of direction and line ends."""


class _As:
    """A control plane as somebody else than its admin sees it."""

    def __init__(self, plane: ControlPlane, token: str) -> None:
        self._client = Client(plane.url, plane.ca_file, token)

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | Sequence[Any] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        return self._client.request(method, path, body, content_type)

    def raw(self, method: str, path: str, body: str = "") -> bytes:
        """The same with texts that no parser here would make or read."""
        return self._client.send(method, path, body.encode() or None)


class Tenant(Sharing):
    """His namespace, in which he does everything by himself.

    Attributes:
        admin: The same namespace as the admin sees it, to look at what became of it.
    """

    admin: Sharing
    his: _As

    @classmethod
    def fresh_beside(cls, plane: ControlPlane, agents: Agents) -> Self:
        """A fresh namespace, and the tenant's rights in it."""
        admin = Sharing.beside(plane, agents)
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{admin.namespace}"
        accounts = f"/api/v1/namespaces/{admin.namespace}/serviceaccounts"
        plane.request("POST", accounts, {"metadata": {"name": TENANT}})
        plane.request("POST", f"{rbac}/roles", {"metadata": {"name": TENANT}, "rules": list(RULES)})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": TENANT}
        subject = {"kind": "ServiceAccount", "name": TENANT, "namespace": admin.namespace}
        body = {"metadata": {"name": TENANT}, "roleRef": role, "subjects": [subject]}
        plane.request("POST", f"{rbac}/rolebindings", body)
        his = _As(plane, plane.token(admin.namespace, TENANT))
        made = cls(cast(ControlPlane, his), admin.namespace)
        made.agents, made.admin, made.his = agents, admin, his
        return made

    def set_label(self, name: str, label: str, value: str | None) -> None:
        """Changes a label of one of his pods."""
        body = {"metadata": {"labels": {label: value}}}
        self.plane.request("PATCH", f"{self.pods}/{name}", body, MERGE)


DEEP = 3000
"""Levels; the server takes 10,000."""


def deep_parameters(text: str) -> str:
    """JSON in which the first list of nothing but a 1 has become as deep as that."""
    return text.replace("[1]", "[" * DEEP + "1" + "]" * DEEP, 1)


def memory_mib(pid: int, field: str = "VmHWM") -> float:
    """A value of /proc/<pid>/status; VmHWM is the most that was ever resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


SHIPPED_MIB = 200
"""The limit of memory that KAI's operator gives the binder."""
