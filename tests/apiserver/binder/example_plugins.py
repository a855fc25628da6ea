"""Plugins of somebody else; the tests install this file as a package with entry points."""

from typing import ClassVar

import anyio

from controller.plugins.base import BindContext, Failed, Outcome, Plugin, Ready


class _Annotated(Plugin):
    """Concerns the pods with an annotation that has the plugin's name."""

    def concerns(self, context: BindContext) -> bool:
        """As the class says."""
        return self._wish(context) != ""

    async def pre_bind(self, context: BindContext) -> Outcome:
        """Content."""
        return Ready(f"saw {self._wish(context)}")

    def _wish(self, context: BindContext) -> str:
        annotations = context.pod["metadata"].get("annotations") or {}
        return str(annotations.get(f"example.com/{self.name}", ""))


class Waits(_Annotated):
    """Waits for so many seconds."""

    name = "waits"
    condition_type = "Waits"
    priority = 40

    async def pre_bind(self, context: BindContext) -> Outcome:
        """Waits."""
        seconds = float(self._wish(context))
        async with context.waiting("the egg timer"):
            await anyio.sleep(seconds)
        return Ready(f"waited {seconds:g} s")


class Raises(_Annotated):
    """Has a fault."""

    name = "raises"
    condition_type = "Raises"
    priority = 30

    async def pre_bind(self, context: BindContext) -> Outcome:
        """Raises."""
        raise RuntimeError(f"100%s broken: {self._wish(context)}")


class Optional(_Annotated):
    """Fails, which the setting may ignore."""

    name = "optional"
    condition_type = "Optional"
    priority = 20

    async def pre_bind(self, context: BindContext) -> Outcome:
        """Fails."""
        return Failed("OutOfLuck", f"no luck with {self._wish(context)}")


class Needy(_Annotated):
    """Needs the one above."""

    name = "needy"
    condition_type = "Needy"
    requires: ClassVar = ("optional",)
    priority = 10


class Orphan(_Annotated):
    """Needs a plugin that nobody has."""

    name = "orphan"
    condition_type = "Orphan"
    requires: ClassVar = ("absent",)
    priority = 5
