"""What a plugin is, what it is given, and how it can end.

A plugin prepares one aspect of a bind. It is called again for the same request after a failure or a restart,
so doing its work twice must give the same result; and it takes back by what the cluster shows, not by what
this process remembers.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import ClassVar

from msgspec import Struct, field
from pydantic import BaseModel, ConfigDict

from controller.kai.outcome import DependencyNotMet, Failed, Outcome, Ready, Skipped
from controller.kai.request import BindRequest
from controller.runtime.changes import Changes
from controller.runtime.client import Client, Object

__all__ = [
    "BindContext",
    "DependencyNotMet",
    "Failed",
    "NoArguments",
    "Outcome",
    "Plugin",
    "Prepared",
    "Ready",
    "Skipped",
]


def _nothing() -> Mapping[str, str]:
    return MappingProxyType({})


class Prepared(Struct, frozen=True, kw_only=True):
    """What a plugin found while it prepared.

    Attributes:
        container_env: Variables that the container with the GPU share is to get, by name. gpusharing delivers
            them.
        annotations: For the pod. They are written with the Binding, so that a failed bind leaves none; where
            the binder has one of that name itself, its own is written.
        found: For this plugin's own `pre_bind`, which gets it as `context.found`.
    """

    container_env: Mapping[str, str] = field(default_factory=_nothing)
    annotations: Mapping[str, str] = field(default_factory=_nothing)
    found: object = None


class BindContext(Struct, frozen=True, kw_only=True):
    """One attempt, as a plugin sees it; read-only.

    Attributes:
        request: The parsed request.
        pod: The pod, not assigned yet.
        node: The chosen node.
        waiting: `async with context.waiting("the provisioner of claim data"):` around each wait for somebody
            else. Others bind meanwhile, and the text is shown in the condition if it takes long. The block is
            broken off, and the attempt with it, once the request, the pod or the node is not what it was.
        changes: `await context.changes.until(...)` within such a block waits for objects.
        gpu_ids: Of the reserved GPUs, in the order of the request's groups; empty while plugins prepare, and
            unless it is a fraction.
        container_env: What all plugins together prepared for the container; empty while they prepare.
        found: What this plugin's `prepare` found; None if it found nothing, or did not run in this attempt.
        final: In a rollback: whether no further attempt of this request is due, so that nothing need be kept.
    """

    request: BindRequest
    pod: Object
    node: Object
    waiting: Callable[[str], AbstractAsyncContextManager[None]]
    changes: Changes
    gpu_ids: tuple[str, ...] = ()
    container_env: Mapping[str, str] = field(default_factory=_nothing)
    found: object = None
    final: bool = True


class NoArguments(BaseModel):
    """Arguments of a plugin that has none."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Plugin(ABC):
    """One aspect of a bind. Subclasses set the class attributes and are built once per process.

    Attributes:
        name: In the plugins setting; lower case.
        condition_type: In the request's status.
        requires: Names of the plugins that must have run before it.
        aliases: Other names that the setting may use.
        priority: Higher runs earlier, unless the setting says otherwise.
        enabled: Whether it runs if the setting does not say.
        default_arguments: Used if the setting has no arguments at all.
        arguments_model: Checks the arguments, which come as text; forbids unknown ones.
    """

    name: ClassVar[str]
    condition_type: ClassVar[str]
    requires: ClassVar[tuple[str, ...]] = ()
    aliases: ClassVar[tuple[str, ...]] = ()
    priority: ClassVar[int] = 0
    enabled: ClassVar[bool] = True
    default_arguments: ClassVar[Mapping[str, str]] = {}
    arguments_model: ClassVar[type[BaseModel]] = NoArguments

    def __init__(self, client: Client, arguments: BaseModel) -> None:
        """Makes the plugin.

        Args:
            client: For all requests to the API server.
            arguments: An instance of `arguments_model`.
        """
        self.client = client
        self.arguments = arguments

    @abstractmethod
    def concerns(self, context: BindContext) -> bool:
        """Whether there is anything to do for this request; without I/O."""

    async def prepare(self, context: BindContext) -> Prepared | Failed | None:
        """Checks what can be checked before anything is reserved or written; called only if `concerns`.

        Returns:
            What it found, if anybody needs it; or why the bind must not go on. It writes nothing.
        """
        return None

    @abstractmethod
    async def pre_bind(self, context: BindContext) -> Outcome:
        """Does the work; called only if `concerns`. The pod is bound only if all plugins are content."""

    async def post_bind(self, context: BindContext) -> None:  # noqa: B027 -- most have nothing to do
        """Called after the bind, which nothing can undo any more."""

    async def rollback(self, context: BindContext) -> None:  # noqa: B027 -- most have nothing to do
        """Takes back what this request made, as far as it is there; called after a failed attempt."""
