"""A binder, nodes on paper, and what a user of the cluster sees of both."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from controlplane import ControlPlane

from tests.explaining import Explained, carry_out, check, explain, normal
from tests.sharing import Agents, Sharing


@dataclass(slots=True)
class Team:
    """A namespace whose pods do not start, and somebody who wants to know why."""

    cluster: Sharing
    kubeconfig: Path
    names: dict[str, str]

    def node(self, name: str = "gpu-1", labels: dict[str, str] | None = None) -> str:
        """A node, by its name in the docs."""
        made = self.cluster.node(labels=labels)
        self.names[made] = name
        return made

    def group(self, name: str = "shared-gpu") -> str:
        """A GPU group, by its name in the docs."""
        made = self.cluster.group()
        self.names[made] = name
        return made

    def explain(self, name: str, *args: str, columns: int = 100) -> Explained:
        return explain(self.kubeconfig, f"{self.cluster.namespace}/{name}", *args, columns=columns)

    def answer(self, name: str) -> dict[str, Any]:
        """What is told of a pod that is not bound, as JSON."""
        told = self.explain(name, "-o", "json")
        assert told.code == 1, told
        assert told.err == ""
        return told.json

    def check(self, output: str, name: str = "train") -> Explained:
        """Compares the text with the docs, without the events: they come when they come."""
        told = self.explain(name)
        assert told.code == 1, told
        text = normal(told.out, {self.cluster.namespace: "team", **self.names})
        check(output, "\n\n".join(part for part in text.split("\n\n") if not part.startswith("Events")))
        return self.explain(name, "-o", "json")

    def do(self, told: Explained, beginning: str, *flags: str, **values: str) -> None:
        """Does what is advised."""
        carry_out(self.cluster.plane, told, beginning, *flags, **values)

    def wait_until_bound(self, name: str = "train", *, within_s: float = 15.0) -> None:
        """Waits for the request to succeed, and for `explain` to say so."""
        self.cluster.wait_for(name, "Succeeded", within_s=within_s)
        told = self.explain(name)
        assert told.code == 0, told
        assert f"Pod {self.cluster.namespace}/{name} is bound to" in told.out


@pytest.fixture
def team(control_plane: ControlPlane, agents: Agents) -> Team:
    """A fresh namespace, seen by somebody who may read everything."""
    return Team(Sharing.beside(control_plane, agents), control_plane.admin_kubeconfig, {})
