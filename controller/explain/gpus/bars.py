"""Draws the picture: a bar for each shared GPU, a row for each pod, marks for what is wrong.

`command.py` calls. Invariants: what stands in objects gets to the terminal through `Terminal` only; a bar is
full if, and only if, the known shares fill the card; on a terminal no line is wider than it, elsewhere no
name is cut.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import pairwise
from math import ceil

from msgspec import Struct

from controller.explain.gpus.model import Finding, Holding, NodeGPUs, Picture, SharedGPU, Sight, Slices, Use
from controller.explain.gpus.shares import percent
from controller.explain.gpus.troubles import named
from controller.explain.terminal import Span, Style, Terminal, cells
from controller.runtime.texts import visible

_WIDEST_BAR, _NARROWEST_BAR = 24, 10
_MOST_EXCESS = 6
_MOST_SQUARES = 32
_LEAST_NAME = 16


class Glyphs(Struct, frozen=True):
    """What bars are made of.

    Attributes:
        shares: For the pods on a GPU, by turns.
        whole: For GPUs that pods have for themselves.
        free: For what nobody has.
        hidden: For what nobody knows of.
        ends: Before and behind a bar.
        cut: In place of what is left out of a name.
    """

    shares: str
    whole: str
    free: str
    hidden: str
    ends: tuple[str, str]
    cut: str


BLOCKS = Glyphs("█▓▒", "█", "░", "?", ("", ""), "…")
ASCII = Glyphs("#=+", "#", ".", "?", ("[", "]"), "~")


def lengths(portions: Sequence[Fraction], columns: int) -> tuple[list[int], int]:
    """How many columns of a bar each portion takes, and how many the excess over the whole takes.

    Each portion takes one at least, while there is room; all are taken only if the whole is.
    """
    total = sum(portions, Fraction(0))
    room = columns if total >= 1 else columns - 1
    ends, reached = [0], Fraction(0)
    for portion in portions:
        reached += portion
        wanted = int(reached * columns + Fraction(1, 2))
        if portion > 0:
            wanted = max(wanted, ends[-1] + 1)
        ends.append(max(ends[-1], min(wanted, room)))
    excess = min(_MOST_EXCESS, ceil((total - 1) * columns)) if total > 1 else 0
    return [end - begin for begin, end in pairwise(ends)], excess


def draw(picture: Picture, terminal: Terminal, glyphs: Glyphs) -> None:
    """Draws all of it; in the end, where one reads on, how much there is."""
    for node in picture.nodes:
        _Drawing(terminal, glyphs, picture.sight).node(node)
        terminal.blank()
    draw_unread(picture, terminal)
    draw_sum(picture, terminal)


def draw_from_the_top(picture: Picture, terminal: Terminal, glyphs: Glyphs) -> None:
    """Draws all of it for a screen that may not have room for the rest."""
    draw_sum(picture, terminal)
    draw_unread(picture, terminal)
    for node in picture.nodes:
        terminal.blank()
        _Drawing(terminal, glyphs, picture.sight).node(node)


def draw_unread(picture: Picture, terminal: Terminal) -> None:
    """Says what could not be read."""
    for sentence in picture.sight.unread:
        terminal.paragraph(("not shown: ", Style.WAITING), sentence, hang=2)


def draw_sum(picture: Picture, terminal: Terminal) -> None:
    """Says how much there is, and how much of it is wrong."""
    nodes = picture.nodes
    if not nodes:
        terminal.paragraph(f"{picture.asked_for} no GPUs.")
        return
    parts = [f"{sum(node.held for node in nodes)} shared", f"{sum(node.taken_whole for node in nodes)} whole"]
    known = [node for node in nodes if node.total is not None]
    head = _counted(len(nodes), "node")
    if known:
        at_most = "" if picture.sight.pods and picture.sight.reservations else "at most "
        parts.append(f"{at_most}{sum(node.free or 0 for node in known)} free")
        head = f"{head}, {_counted(sum(node.total or 0 for node in known), 'GPU')}"
    terminal.paragraph(f"{head}: {', '.join(parts)}")
    found = picture.findings
    if found:
        places = dict.fromkeys(f"{finding.trouble} on {node.name}" for node, _, finding in found)
        terminal.paragraph((f"{_counted(len(found), 'problem')}: {named(list(places))}", Style.BAD), hang=2)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


class _Row(Struct, frozen=True):
    """A row of a table: a name, and cells that are aligned with those of other rows."""

    mark: str
    name: str
    cells: tuple[str, ...]
    style: Style = Style.PLAIN


class _Drawing:
    """Draws one node."""

    def __init__(self, terminal: Terminal, glyphs: Glyphs, sight: Sight) -> None:
        self._terminal = terminal
        self._glyphs = glyphs
        self._sees_reservations = sight.reservations
        self._sees_all = sight.pods and sight.reservations
        self._bar = max(_NARROWEST_BAR, min(_WIDEST_BAR, terminal.width // 4))
        self._end = terminal.width if terminal.is_terminal else None

    def node(self, node: NodeGPUs) -> None:
        """Draws a node and all that is on it."""
        memory = f"{node.card_mib} MiB each" if node.card_mib is not None else "memory unknown"
        facts = "  ".join(filter(None, (node.product, memory)))
        self._beside([(self._cut(node.name, 0), Style.TITLE)], facts, indent=0)
        self._overview(node)
        self._findings(node.findings, indent=2)
        for gpu in node.shared:
            self._gpu(gpu, node)
        if node.whole:
            self._terminal.line("whole GPUs", indent=2)
            self._table([_row_of(holding, "GPU") for holding in node.whole], indent=4)
        for slices in node.slices:
            self._slices(slices)

    def _overview(self, node: NodeGPUs) -> None:
        """One square for each GPU of the node."""
        counts = [_counted_as(node.held, "shared"), _counted_as(node.taken_whole, "whole")]
        if node.total is None:
            counts.append("how many it has may not be read")
            self._beside([], f"GPUs: {', '.join(filter(None, counts))}", indent=2)
            return
        free = node.free or 0
        if free or not any(counts):
            counts.append(f"{'' if self._sees_all else 'at most '}{free} free")
        text = f"{_counted(node.total, 'GPU')}: {', '.join(filter(None, counts))}"
        glyphs, number = self._glyphs, node.held + node.taken_whole
        rest = (glyphs.free if self._sees_all else glyphs.hidden) * free
        squares = glyphs.shares[-1] * node.held + glyphs.whole * node.taken_whole + rest
        if node.total == 0 and number == 0:
            return
        self._beside([self._framed(squares)] if len(squares) <= _MOST_SQUARES else [], text, indent=2)

    def _gpu(self, gpu: SharedGPU, node: NodeGPUs) -> None:
        """A bar, who holds the GPU, and a row for each pod."""
        device = self._cut(gpu.device or "device unknown", 2)
        rounded = gpu.portion > 1 and not gpu.is_over_committed
        used = "about " if rounded else "" if gpu.all_known else "at least "
        of_card = f" of {node.card_mib}" if node.card_mib is not None else ""
        memory = f"  {gpu.mib}{of_card} MiB" if node.card_mib is not None or gpu.mib else ""
        text = f"{used}{percent(gpu.portion)}{memory}"
        bar, excess = self._bar_of(gpu)
        spans: list[Span] = [bar]
        if excess:
            spans.append((excess, Style.BAD))
        if 2 + cells(device) + 2 + len(bar + excess) + 2 + len(text) <= self._terminal.width:
            self._terminal.line((device, Style.TITLE), "  ", *spans, f"  {text}", indent=2)
        else:
            self._terminal.line((device, Style.TITLE), indent=2)
            self._beside(spans, text, indent=2)
        self._holder(gpu)
        self._table(
            [
                _row_of_use(use, self._glyphs.shares[number % len(self._glyphs.shares)])
                for number, use in enumerate(gpu.uses)
            ],
            indent=4,
        )
        if not gpu.uses:
            why = (
                "a request for it is being worked on"
                if gpu.awaited
                else "nobody uses it"
                if self._sees_all
                else "who uses it may not be read"
            )
            self._text(why, indent=4)
        self._findings(gpu.findings, indent=4)

    def _holder(self, gpu: SharedGPU) -> None:
        reservation = gpu.reservation
        group = f"group {gpu.group}" if gpu.group else "no group"
        if reservation is None:
            held = "held by nobody" if self._sees_reservations else "its reservation pod may not be read"
        else:
            group = f"{group}, {reservation.mode}"
            held = f"held by {reservation.name}, {reservation.phase}"
        self._text(group, indent=4)
        self._text(held, indent=4)

    def _bar_of(self, gpu: SharedGPU) -> tuple[str, str]:
        """The bar of a shared GPU, and what goes beyond it."""
        glyphs = self._glyphs
        shares, over = lengths([use.size.portion or Fraction(0) for use in gpu.uses], self._bar)
        drawn = "".join(
            glyphs.shares[number % len(glyphs.shares)] * length for number, length in enumerate(shares)
        )
        rest = glyphs.free if self._sees_all and gpu.all_known else glyphs.hidden
        excess = "!" * over if gpu.is_over_committed else ""
        return self._framed(drawn + rest * (self._bar - len(drawn))), excess

    def _slices(self, slices: Slices) -> None:
        total, used = slices.total, slices.used
        of_total = f" of {total}" if total is not None else ""
        rest = max(0, total - used) if total is not None else 0
        free = (self._glyphs.free if self._sees_all else self._glyphs.hidden) * rest
        squares = self._glyphs.whole * used + free
        bar = [self._framed(squares)] if 0 < len(squares) <= _MOST_SQUARES else []
        self._beside(bar, f"MIG {slices.profile}: {used}{of_total} used", indent=2)
        self._table([_row_of(holding, "slice") for holding in slices.holdings], indent=4)

    def _findings(self, findings: Iterable[Finding], indent: int) -> None:
        for finding in findings:
            text = f"! {finding.trouble}: {finding.message}"
            self._terminal.paragraph((text, Style.BAD), indent=indent, hang=2)

    def _framed(self, squares: str) -> str:
        begin, end = self._glyphs.ends
        return f"{begin}{squares}{end}"

    def _text(self, text: str, indent: int) -> None:
        """Something beside the point, on as many lines as it takes."""
        if indent + len(text) <= self._terminal.width and text.isascii():
            self._terminal.line((text, Style.FAINT), indent=indent)  # the common case, and cheaper
        else:
            self._terminal.paragraph((text, Style.FAINT), indent=indent)

    def _beside(self, spans: Sequence[Span], text: str, indent: int) -> None:
        """Two pieces on one line, or on two where they do not fit."""
        first = sum(cells(visible(span if isinstance(span, str) else span[0])) for span in spans)
        if indent + first + 2 * bool(first) + cells(visible(text)) <= self._terminal.width:
            self._terminal.line(*spans, *(["  "] if first else []), text, indent=indent)
            return
        if first:
            self._terminal.line(*spans, indent=indent)
        self._terminal.paragraph(text, indent=indent)

    def _table(self, rows: Sequence[_Row], indent: int) -> None:
        """Rows with aligned cells; where they do not fit, the cells stand below the names."""
        if not rows:
            return
        widths = [max(cells(row.cells[place]) for row in rows) for place in range(len(rows[0].cells))]
        cells_width = sum(widths) + 2 * len(widths)
        room = self._terminal.width - indent - 2 - cells_width
        longest = max(cells(visible(row.name)) for row in rows)
        beside = longest <= room or room >= _LEAST_NAME
        name_width = min(longest, room)
        for row in rows:
            mark: list[Span] = [f"{row.mark} "]
            if not beside:
                self._terminal.line(*mark, self._cut(row.name, indent + 2), indent=indent)
                text = ", ".join(filter(None, row.cells))
                self._terminal.paragraph((text, row.style), indent=indent + 4)
                continue
            name = self._cut(row.name, self._terminal.width - name_width)
            padded = name + " " * max(0, name_width - cells(visible(name)))
            aligned = "  ".join(map(_padded, row.cells, widths)).rstrip()
            self._terminal.line(*mark, f"{padded}  ", (aligned, row.style), indent=indent)

    def _cut(self, name: str, taken: int) -> str:
        """A name that fits beside so many columns; on a terminal its middle goes if it does not."""
        name = visible(name)
        room = (self._end - taken) if self._end is not None else len(name)
        return elided(name, max(room, _LEAST_NAME), self._glyphs.cut)


def elided(name: str, columns: int, cut: str) -> str:
    """A name in so many columns at most: its ends tell more than its middle."""
    if cells(name) <= columns:
        return name
    head, tail = name, name
    while cells(head) > (columns - 1) // 2:
        head = head[:-1]
    while cells(head) + 1 + cells(tail) > columns:
        tail = tail[1:]
    return f"{head}{cut}{tail}"


def _counted_as(number: int, what: str) -> str:
    return f"{number} {what}" if number else ""


def _padded(cell: str, width: int) -> str:
    """A cell as wide as its column; numbers stand to the right."""
    is_number = cell[:1].isdigit() or cell[:1] in ("?", "<")
    return cell.rjust(width) if is_number else cell.ljust(width)


def _row_of_use(use: Use, glyph: str) -> _Row:
    portion = percent(use.size.portion) if use.size.portion is not None else "?%"
    mib = f"{use.size.mib} MiB" if use.size.mib is not None else "memory unknown"
    limit = str(use.limit) if use.limit is not None else ""
    return _Row(glyph, str(use.pod), (portion, mib, limit, use.pod.phase), _style(use.pod.phase))


def _row_of(holding: Holding, what: str) -> _Row:
    return _Row(
        " ",
        str(holding.pod),
        (_counted(holding.count, what), holding.pod.phase),
        _style(holding.pod.phase),
    )


def _style(phase: str) -> Style:
    return Style.PLAIN if phase in ("Running", "") else Style.WAITING
