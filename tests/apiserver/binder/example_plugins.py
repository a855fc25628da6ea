"""Plugins of somebody else; the tests install this file as a package with entry points."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import anyio

from controller.kai.names import PODS
from controller.plugins.base import (
    BindContext,
    DependencyNotMet,
    Failed,
    Outcome,
    Plugin,
    Prepared,
    Ready,
    Skipped,
)


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


class Prepares(_Annotated):
    """Has an annotation written on the pod, by the wish `name=value`; may have the bind fail nevertheless."""

    name = "prepares"
    condition_type = "Prepares"
    priority = 4

    async def prepare(self, context: BindContext) -> Prepared:
        """Finds out what is to be written."""
        name, _, value = self._wish(context).partition("=")
        return Prepared(annotations={name: value}, found=f"found {name}")

    async def pre_bind(self, context: BindContext) -> Outcome:
        """Says what was found before."""
        assert context.found == f"found {self._wish(context).partition('=')[0]}"
        if "fails" in self._wish(context):
            return Failed("OutOfLuck", "no luck today")
        return Ready(str(context.found))


class Also(Prepares):
    """Another one of that kind."""

    name = "also"
    condition_type = "Also"
    priority = 3


class Keeps(_Annotated):
    """Fails, and writes on the pod what each rollback was told."""

    name = "keeps"
    condition_type = "Keeps"
    priority = 2

    async def pre_bind(self, context: BindContext) -> Outcome:
        """Fails."""
        return Failed("OutOfLuck", "no luck", retry=self._wish(context) != "final")

    async def rollback(self, context: BindContext) -> None:
        """Writes it down."""
        metadata = context.pod["metadata"]
        pod = await self.client.get(PODS, metadata["name"], metadata["namespace"])
        seen = (pod["metadata"].get("annotations") or {}).get("example.com/told", "")
        told = {"annotations": {"example.com/told": f"{seen}{context.final} "}}
        await self.client.patch(PODS, metadata["name"], {"metadata": told}, metadata["namespace"])


class _Unspeakable:
    """Cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")


class _Mapping(Mapping[str, str]):
    """Breaks when it is looked at."""

    def __getitem__(self, name: str) -> str:
        raise RuntimeError("no items")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no items")

    def __len__(self) -> int:
        return 1


ANYTHING: Any = {
    "None": None,
    "False": False,
    "True": True,
    "text": "Ready",
    "number": 7,
    "class": Ready,
    "tuple": (Ready(), None),
    "exception": RuntimeError("returned"),
    "unspeakable": _Unspeakable(),
    "ready": Ready(),
    "skipped": Skipped(),
    "prepared": Prepared(),
    "unmet": DependencyNotMet("x needs y"),
    "no-reason": Failed("", "quiet"),
    "reason-of-signs": Failed("!?", "quiet"),
    "reason-is-number": Failed(7, "quiet"),  # type: ignore[arg-type]
    "reason-of-words": Failed("out of luck!", "quiet"),
    "long-reason": Failed("Out" * 2000, "quiet"),
    "message-is-number": Failed("OutOfLuck", 7),  # type: ignore[arg-type]
    "message-is-unspeakable": Failed("OutOfLuck", _Unspeakable()),  # type: ignore[arg-type]
    "message-of-lines": Failed("OutOfLuck", "one\ntwo\x00\x1b[31m\ud800"),
    "long-message": Failed("OutOfLuck", "x" * 2_000_000),
    "ready-without-text": Ready(None),  # type: ignore[arg-type]
    "env-is-list": Prepared(container_env=["A"]),  # type: ignore[arg-type]
    "env-with-bad-name": Prepared(container_env={"a b": "c"}),
    "env-with-number": Prepared(container_env={"A": 7}),  # type: ignore[dict-item]
    "annotation-with-bad-name": Prepared(annotations={"a/b/c": "d"}),
    "annotation-with-number": Prepared(annotations={"example.com/a": 7}),  # type: ignore[dict-item]
    "annotation-of-half-a-character": Prepared(annotations={"example.com/a": "\ud800"}),
    "annotations-too-long": Prepared(annotations={"example.com/a": "x" * 70_000}),
    "annotations-that-break": Prepared(annotations=_Mapping()),
}
RAISED: Any = {
    "raise-runtime": RuntimeError("boom"),
    "raise-exit": SystemExit(3),
    "raise-interrupt": KeyboardInterrupt(),
    "raise-cancelled": asyncio.CancelledError("of my own"),
    "raise-generator-exit": GeneratorExit(),
    "raise-group": ExceptionGroup("two", [ValueError("one"), KeyError("other")]),
    "raise-group-of-one": ExceptionGroup("one", [ValueError("inner")]),
    "raise-unspeakable": RuntimeError(_Unspeakable()),
}


class Nonsense(_Annotated):
    """Does what its annotation says: `<method> <what to return or raise>`."""

    name = "nonsense"
    condition_type = "Nonsense"
    priority = 1

    def concerns(self, context: BindContext) -> bool:
        """Perhaps it does."""
        return bool(self._maybe(context, "concerns", default=super().concerns(context)))

    async def prepare(self, context: BindContext) -> Prepared | Failed | None:
        """Perhaps nothing."""
        found: Prepared | Failed | None = self._maybe(context, "prepare", default=None)
        return found

    async def pre_bind(self, context: BindContext) -> Outcome:
        """Perhaps an outcome."""
        found: Outcome = self._maybe(context, "pre_bind", default=Ready())
        return found

    async def post_bind(self, context: BindContext) -> None:
        """Perhaps it is well."""
        self._maybe(context, "post_bind", default=None)

    async def rollback(self, context: BindContext) -> None:
        """Perhaps as well, of a bind that failed."""
        self._maybe(context, "rollback", default=None)

    def _maybe(self, context: BindContext, method: str, *, default: Any) -> Any:  # noqa: ANN401
        for wish in self._wish(context).split(","):
            asked, _, what = wish.partition(" ")
            if asked == method and what in RAISED:
                raise RAISED[what]
            if asked == method:
                return ANYTHING[what]
        return default


class Undecided(_Annotated):
    """Does not say whether it is concerned."""

    name = "undecided"
    condition_type = "Undecided"
    priority = 0

    def concerns(self, context: BindContext) -> bool:
        """Says nothing where it should say yes."""
        answer: bool = None if self._wish(context) else False  # type: ignore[assignment]
        return answer


class Vandal(_Annotated):
    """Changes what it is given."""

    name = "vandal"
    condition_type = "Vandal"
    priority = 500

    async def pre_bind(self, context: BindContext) -> Outcome:
        """Makes the pod another one."""
        context.pod["metadata"]["uid"] = "of another"
        context.pod["spec"]["nodeName"] = "elsewhere"
        context.node["metadata"].clear()
        return Ready()
