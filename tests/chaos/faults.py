"""What may befall a binder. Each fault is started, lasts for a while, and is healed.

Made by `make_faults`, called by the lanes of a run. Invariant: after `heal` nothing of the fault is left but
what it did; healing works also if starting it did not.
"""

import json
import os
import random
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tests.chaos.history import Object
from tests.chaos.refusals import NAME, policies, quotas, webhooks
from tests.chaos.rules.words import RESERVATIONS, is_over
from tests.chaos.world import NODES, TEAM, World
from tests.proxy import Action, CutLine, Delay, DropAnswer, Hang, Refuse, Rule

STOPPED_S, RUNNING_S = 0.3, 0.15
DELETED = 3
T = TypeVar("T")


class Fault(Protocol):
    """One kind of fault; its docstring says what happens."""

    def start(self, dice: int) -> None:
        """Lets it happen; the dice choose what it hits."""

    def heal(self) -> None:
        """Ends it."""


@dataclass(slots=True)
class ServerKilled:
    """The API server is killed, and started again."""

    world: World

    def start(self, dice: int) -> None:
        self.world.plane.kill_apiserver()

    def heal(self) -> None:
        self.world.plane.start_apiserver()


@dataclass(slots=True)
class EtcdKilled:
    """etcd is killed, and started again."""

    world: World

    def start(self, dice: int) -> None:
        self.world.plane.kill_etcd()

    def heal(self) -> None:
        self.world.plane.start_etcd()


@dataclass(slots=True)
class EtcdStopped:
    """etcd stands still: no write is answered, and what was sent may be carried out later."""

    world: World

    def start(self, dice: int) -> None:
        self.signal(signal.SIGSTOP)

    def heal(self) -> None:
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Sends etcd a signal."""
        pid = self.world.plane.pids["etcd"]
        assert pid is not None
        os.kill(pid, number)


class EtcdSlowed(EtcdStopped):
    """etcd works in pulses: two thirds of the time it stands still."""

    __slots__ = ("_ended", "_thread")

    def start(self, dice: int) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._pulse, name="etcd-slowed", daemon=True)
        self._thread.start()

    def heal(self) -> None:
        self._ended.set()
        self._thread.join()
        super().heal()

    def _pulse(self) -> None:
        while not self._ended.wait(RUNNING_S):
            self.signal(signal.SIGSTOP)
            self._ended.wait(STOPPED_S)
            self.signal(signal.SIGCONT)


@dataclass(slots=True)
class EtcdCompacted:
    """etcd forgets its history, and all watches have to begin anew."""

    world: World

    def start(self, dice: int) -> None:
        found = self.world.send("GET", "/api/v1/namespaces") or {}
        body = json.dumps({"revision": found["metadata"]["resourceVersion"], "physical": True}).encode()
        url = f"{self.world.plane.etcd_url}/v3/kv/compaction"
        with self.world.proxy.rule(Rule(Refuse(), method="WATCH")), suppress(urllib.error.HTTPError):
            urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=30).close()  # noqa: S310

    def heal(self) -> None:
        """Nothing to be done."""


@dataclass(slots=True)
class Killed:
    """One of the two binders is killed, or both, and started again as a Deployment would."""

    world: World
    count: int

    def start(self, dice: int) -> None:
        for replica in _chosen(self.world.replicas, self.count, dice):
            replica.kill()

    def heal(self) -> None:
        for replica in self.world.replicas:
            replica.let_start()


@dataclass(slots=True)
class Frozen:
    """One of the two binders stands still, shorter or longer than its lease, and goes on."""

    world: World

    def start(self, dice: int) -> None:
        for replica in _chosen(self.world.replicas, 1, dice):
            replica.signal(signal.SIGSTOP)

    def heal(self) -> None:
        for replica in self.world.replicas:
            replica.signal(signal.SIGCONT)


@dataclass(slots=True)
class TokensRotated:
    """Both binders get new tokens, and the old ones are refused from then on, or ten seconds later."""

    world: World

    def start(self, dice: int) -> None:
        for replica in self.world.replicas:
            self.world.give_token(replica)

    def heal(self) -> None:
        """Nothing to be done."""


@dataclass(slots=True)
class Disturbed:
    """The proxy does something to a part of the binders' calls.

    Attributes:
        world: Where.
        action: What it does.
        share: To which part of the calls.
        method: Of the calls; all if empty.
        writes: Whether only calls that change something are concerned.
    """

    world: World
    action: Action
    share: float
    method: str = ""
    writes: bool = False
    _rule: Rule | None = None

    def start(self, dice: int) -> None:
        chance = random.Random(dice)  # noqa: S311 -- no secret
        self._rule = Rule(
            self.action,
            method=self.method,
            where=lambda call: (call.method != "GET" or not self.writes) and chance.random() < self.share,
        )
        self.world.proxy.add(self._rule)

    def heal(self) -> None:
        if self._rule is not None:
            self.world.proxy.remove(self._rule)


@dataclass(slots=True)
class Refusing:
    """Objects of the admin are there for a while that have the API server refuse something.

    Attributes:
        world: Where.
        choices: Of each kind of refusal the objects, by the path of their kind.
    """

    world: World
    choices: Sequence[Mapping[str, Object]]
    _made: Sequence[str] = ()

    def start(self, dice: int) -> None:
        chosen = self.choices[dice % len(self.choices)]
        self._made = [f"{path}/{NAME}" for path in chosen]
        for path, body in chosen.items():
            self.world.create(path, {"metadata": {"name": NAME}, **body})

    def heal(self) -> None:
        for path in self._made:
            self.world.send("DELETE", path)


@dataclass(slots=True)
class Deleted:
    """Users delete a few objects of a kind.

    Attributes:
        world: Where.
        resource: The kind.
        namespace: Of the objects.
    """

    world: World
    resource: str
    namespace: str = TEAM

    def start(self, dice: int) -> None:
        path = self.world.path(self.resource, self.namespace)
        found = sorted(self.world.list(path), key=lambda item: str(item["metadata"]["name"]))
        if self.resource == "bindrequests":  # those that are worked on are the more interesting ones
            found = [item for item in found if not is_over(item)] or found
        for item in _chosen(found, DELETED, dice):
            self.world.send("DELETE", f"{path}/{item['metadata']['name']}?gracePeriodSeconds=0")

    def heal(self) -> None:
        """Nothing to be done."""


@dataclass(slots=True)
class NodesDeleted:
    """A node is deleted, and comes back under the same name."""

    world: World

    def start(self, dice: int) -> None:
        self.world.send("DELETE", f"/api/v1/nodes/{NODES[dice % len(NODES)]}")

    def heal(self) -> None:
        for name in NODES:
            self.world.make_node(name)


def _chosen(items: Sequence[T], count: int, dice: int) -> list[T]:
    """So many of these, or all."""
    return random.Random(dice).sample(list(items), min(count, len(items)))  # noqa: S311 -- no secret


def make_faults(world: World) -> dict[str, Fault]:
    """All faults by their names in the plan."""
    return {
        "server-killed": ServerKilled(world),
        "etcd-slowed": EtcdSlowed(world),
        "etcd-stopped": EtcdStopped(world),
        "etcd-killed": EtcdKilled(world),
        "etcd-compacted": EtcdCompacted(world),
        "binder-killed": Killed(world, 1),
        "binders-killed": Killed(world, 2),
        "binder-frozen": Frozen(world),
        "binder-frozen-past-its-lease": Frozen(world),
        "tokens-rotated": TokensRotated(world),
        "calls-delayed": Disturbed(world, Delay(0.7), 0.5),
        "calls-cut": Disturbed(world, Refuse(), 0.3),
        "answers-lost": Disturbed(world, DropAnswer(), 0.4, writes=True),
        "watches-cut": Disturbed(world, CutLine(), 0.5, "WATCH"),
        "watches-mute": Disturbed(world, Hang(), 0.7, "WATCH"),
        "quota": Refusing(world, quotas()),
        "bindings-denied": Refusing(world, policies()),
        "webhook-down": Refusing(world, webhooks()),
        "pods-deleted": Deleted(world, "pods"),
        "nodes-deleted": NodesDeleted(world),
        "reservations-deleted": Deleted(world, "pods", RESERVATIONS),
        "requests-deleted": Deleted(world, "bindrequests"),
    }
