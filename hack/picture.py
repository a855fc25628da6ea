"""Draws the panels of the dashboard as an SVG, from scrapes of a running binder; ``hack/dashboard`` calls it.

Invariant: the same scrapes give the same picture, byte for byte.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from html import escape

from monitoringgen import Panel, panels
from promql import Query, Scrape, Series, evaluate

COLORS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#eeca3b")
_COLUMNS, _WIDTH, _HEIGHT, _GAP, _HEAD = 3, 340, 190, 12, 26
_LEFT, _TOP, _PLOT_WIDTH, _PLOT_HEIGHT = 46, 30, 282, 104
_LINES_OF_LEGEND, _CHARACTERS = 2, 52
_UNITS = {"ops": "/s", "reqps": "/s", "s": " s", "short": "", "percentunit": "%", "bytes": " MiB"}


def picture(scrapes: Sequence[Scrape], step_s: float, window: str, rows: Collection[str]) -> str:
    """The panels of these rows over the time of the scrapes.

    Args:
        scrapes: At least two.
        step_s: Seconds from point to point.
        window: What stands for ``$__rate_interval``, such as ``10s``.
        rows: Headings.
    """
    from_s, until_s = scrapes[0].at_s, scrapes[-1].at_s
    wanted = [panel for panel in panels() if panel.row in rows]
    queries = [
        Query(expr.replace("$__rate_interval", window).replace("$job", ".*"), until_s, from_s, step_s)
        for panel in wanted
        for expr in panel.lines.values()
    ]
    answers = iter(evaluate(scrapes, queries=queries).answers)
    parts, row, number, y = list[str](), "", 0, 0
    for panel in wanted:
        if panel.row != row:
            y += (_HEIGHT + _GAP) if row else 0
            row, number = panel.row, 0
            parts.append(f'<text x="0" y="{y + 17}" class="row">{escape(row)}</text>')
            y += _HEAD
        lines = [(legend, one) for legend in panel.lines for one in next(answers).series]
        parts.append(_panel(panel, lines, number * (_WIDTH + _GAP), y, (from_s, until_s)))
        number += 1
    width, height = _COLUMNS * (_WIDTH + _GAP) - _GAP, y + _HEIGHT
    return "\n".join((_head(width, height), *parts, "</svg>", ""))


def _head(width: int, height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-8 -8 {width + 16} {height + 16}" '
        f'font-family="sans-serif" font-size="11">\n'
        "<style>.row{font-size:15px;font-weight:bold}.title{font-weight:bold}.axis{fill:#777}"
        "text{fill:#333}polyline{fill:none;stroke-width:1.5}</style>\n"
        f'<rect x="-8" y="-8" width="{width + 16}" height="{height + 16}" fill="#f4f5f6"/>'
    )


def _panel(
    panel: Panel, lines: Sequence[tuple[str, Series]], x: int, y: int, span_s: tuple[float, float]
) -> str:
    factor = {"percentunit": 100.0, "bytes": 2.0**-20}.get(panel.unit, 1.0)
    points = [
        (_named(legend, one), [(at_s, value * factor) for at_s, value in one.points if math.isfinite(value)])
        for legend, one in lines
    ]
    top = _ceiling(max((value for _, found in points for _, value in found), default=0.0))
    parts = [
        f'<g transform="translate({x},{y})">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="4" fill="#fff" stroke="#ddd"/>',
        f'<text x="10" y="18" class="title">{escape(panel.title)}</text>',
    ]
    unit = _UNITS[panel.unit]
    for share in (0.0, 0.5, 1.0):
        height = _TOP + _PLOT_HEIGHT * (1 - share)
        parts.append(
            f'<path d="M{_LEFT} {height:.1f}h{_PLOT_WIDTH}" stroke="#e5e5e5"/>'
            f'<text x="{_LEFT - 4}" y="{height + 4:.1f}" text-anchor="end" class="axis">'
            f"{top * share:.3g}{unit}</text>"
        )
    for number, (_, found) in enumerate(points):
        parts.append(_line(found, COLORS[number % len(COLORS)], top, span_s))
    parts += _legend([name for name, _ in points])
    return "".join((*parts, "</g>"))


def _named(legend: str, one: Series) -> str:
    """The legend with the labels of the series filled in, as Grafana does."""
    for label, value in one.labels.items():
        legend = legend.replace("{{" + label + "}}", value)
    return legend


def _ceiling(value: float) -> float:
    """A round number that is no less."""
    if value <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(value))
    return next(size * step for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if size * step >= value * 0.999)


def _line(found: Sequence[tuple[float, float]], color: str, top: float, span_s: tuple[float, float]) -> str:
    from_s, until_s = span_s
    places = " ".join(
        f"{_LEFT + (at_s - from_s) / (until_s - from_s) * _PLOT_WIDTH:.1f},"
        f"{_TOP + _PLOT_HEIGHT * (1 - value / top):.1f}"
        for at_s, value in found
    )
    return f'<polyline points="{places}" stroke="{color}"/>'


def _legend(names: Sequence[str]) -> Iterator[str]:
    """The names in as many lines as there is room for; what has none is left out, and said to be."""
    line, used = 0, 0
    for number, name in enumerate(names):
        if used and used + len(name) + 3 > _CHARACTERS:
            line, used = line + 1, 0
        place = f'x="{10 + used * 6}" y="{_TOP + _PLOT_HEIGHT + 20 + line * 15}"'
        if line >= _LINES_OF_LEGEND:
            yield f"<text {place}>… and {len(names) - number} more</text>"
            return
        yield f'<text {place} style="fill:{COLORS[number % len(COLORS)]}">■ {escape(name)}</text>'
        used += len(name) + 3
