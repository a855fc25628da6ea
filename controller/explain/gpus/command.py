"""The verb `gpus`: reads, makes the picture, shows it, once or for as long as somebody watches.

Called by `controller.explain.verbs`. Exit codes: 0 if nothing is wrong so far as can be seen, 1 if something
is wrong on a GPU; a watch ends by a signal and with its code, as commands do. Invariant: a watch asks for
`MOST_REQUESTS_PER_S` requests a second at most, on average.
"""

import json
import signal
from collections.abc import Awaitable, Callable
from datetime import datetime

import anyio
from msgspec.structs import replace

from controller.explain.gpus.bars import ASCII, BLOCKS, draw, draw_from_the_top
from controller.explain.gpus.document import document_of
from controller.explain.gpus.model import Picture, Trouble
from controller.explain.gpus.narrowing import narrowed
from controller.explain.gpus.picture import Names, picture_of
from controller.explain.gpus.reading import Reading
from controller.explain.gpus.screen import Screen
from controller.explain.options import Options
from controller.explain.reads import connected
from controller.explain.terminal import Style, Terminal
from controller.explain.verbs import CannotTellError
from controller.runtime import errors
from controller.runtime.imports import without_collection

INTERVAL_S = 2.0
MOST_REQUESTS_PER_S = 3.0


async def run(options: Options, terminal: Terminal) -> int:
    """Shows who is on which GPU; raises as a `Verb` does."""
    names = Names(
        scheduler=options.scheduler_name,
        reservations=options.reservation_namespace,
        variable=options.limit_variable,
    )
    async with connected(options.kubeconfig, options.context, deadline_s=options.timeout_s) as (reads, own):
        reading = Reading(reads, names, options.target, options.namespace, own)
        if options.watch:
            return await _until_signal(_Watch(reading, options, terminal).go_on)
        with without_collection():  # nearly all that is read is kept
            picture = await look(reading, options)
        if options.output == "json":
            terminal.raw(json.dumps(document_of(picture), indent=2))
        else:
            draw(picture, terminal, ASCII if options.ascii or not terminal.can_draw else BLOCKS)
    return 1 if picture.findings else 0


async def look(reading: Reading, options: Options) -> Picture:
    """Reads all and makes the picture; raises as `Reading.read` does."""
    read = await reading.read()
    picture = picture_of(read, reading.names)
    if any(finding.trouble is Trouble.UNUSED_RESERVATION for _, _, finding in picture.findings):
        read = replace(read, later=await reading.read_requests())
        picture = picture_of(read, reading.names)
    if options.target:
        nodes = tuple(node for node in picture.nodes if node.name == options.target)
        picture = replace(picture, nodes=nodes, asked_for=f"Node {options.target} has")
    if options.namespace:
        picture = narrowed(replace(picture, asked_for=f"Pods of {options.namespace} have"), options.namespace)
    return picture


class _Watch:
    """Shows the picture again whenever it has changed."""

    def __init__(self, reading: Reading, options: Options, terminal: Terminal) -> None:
        self._reading = reading
        self._options = options
        is_text = options.output == "text"
        self._screen = Screen(
            terminal, is_whole=is_text and terminal.is_terminal, gap=("",) if is_text else ()
        )
        self._glyphs = ASCII if options.ascii or not terminal.can_draw else BLOCKS
        self._picture: Picture | None = None
        self._seen_at = ""

    async def go_on(self) -> None:
        """Goes on for ever; raises as a `Verb` does if there never was a picture."""
        await self._look()
        shown: list[str] = []
        with self._screen.taken():
            problem = ""
            while True:
                lines = self._lines(problem)
                if lines != shown:
                    self._screen.show(lines)
                    shown = lines
                await anyio.sleep(max(INTERVAL_S, self._reading.asked / MOST_REQUESTS_PER_S))
                problem = ""
                try:
                    await self._look()
                except (CannotTellError, errors.ApiError) as error:
                    problem = str(error)

    async def _look(self) -> None:
        self._picture = await look(self._reading, self._options)
        self._seen_at = datetime.now().astimezone().strftime("%H:%M:%S")

    def _lines(self, problem: str) -> list[str]:
        """The picture as it is to be shown."""
        assert self._picture is not None  # noqa: S101 -- the first look made one, or raised
        if self._options.output == "json":
            return [json.dumps(document_of(self._picture))]
        canvas, drawn = self._screen.canvas()
        if problem:
            text = f"this is how it was at {self._seen_at}, as nothing can be read now: {problem}"
            canvas.paragraph((text, Style.BAD), hang=2)
        draw_from_the_top(self._picture, canvas, self._glyphs)
        return drawn.getvalue().splitlines()


async def _until_signal(work: Callable[[], Awaitable[None]]) -> int:
    """Works until a signal asks to end; returns the exit code of that."""
    failure: Exception | None = None
    code = 0
    async with anyio.create_task_group() as tasks:

        async def listen() -> None:
            nonlocal code
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
                async for number in signals:
                    code = 128 + number
                    tasks.cancel_scope.cancel()

        tasks.start_soon(listen)
        try:
            await work()
        except Exception as error:  # noqa: BLE001 -- raised below, not in a group
            failure = error
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return code
