"""Curves over the size of a cluster, as SVG: a small writer of our own, since one chart needs no library.

Pure. The text takes the colour of the page around it, so that the picture can be read on light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmark.figures import OURS, PEER, Found
from benchmark.growth import CURVES, SIZES

WIDTH, HEIGHT = 230, 190
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 34, 34
COLOURS = {OURS: "#2a7de1", PEER: "#e07b27"}


def curves(found: Found) -> str:
    """One small chart for each figure, side by side; both programs in each."""
    programs = [name for name in (OURS, PEER) if any(name in each for each in found.rounds)]
    parts = [_chart(found, programs, name, number * WIDTH) for number, name in enumerate(CURVES)]
    width = WIDTH * len(CURVES)
    legend = "".join(
        f'<rect x="{LEFT + 110 * number}" y="{HEIGHT + 4}" width="12" height="4" fill="{COLOURS[name]}"/>'
        f'<text x="{LEFT + 18 + 110 * number}" y="{HEIGHT + 10}">{name}</text>'
        for number, name in enumerate(programs)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT + 20}" font-size="11" '
        f'font-family="sans-serif" fill="#808080">\n{"".join(parts)}{legend}\n</svg>\n'
    )


def _chart(found: Found, programs: Sequence[str], name: str, left: int) -> str:
    series = {
        program: [found.median(program, f"{size:,} pods: {name}") for size in SIZES] for program in programs
    }
    top = _round_up(max((value for values in series.values() for value in values if value), default=1.0))
    unit = found.unit(f"{SIZES[0]:,} pods: {name}")
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    lines = [
        f'<g transform="translate({left} 0)"><text x="8" y="16">{name}{f", {unit}" if unit else ""}</text>'
    ]
    for part in (0.0, 0.5, 1.0):
        y = bottom - part * (bottom - TOP)
        lines.append(f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#808080" stroke-opacity="0.3"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top * part:g}</text>')
    places = [LEFT + 14 + number * (right - LEFT - 28) / (len(SIZES) - 1) for number in range(len(SIZES))]
    for x, size in zip(places, SIZES, strict=True):
        lines.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{size:,}</text>')
    for program, values in series.items():
        points = [
            (x, bottom - value / top * (bottom - TOP))
            for x, value in zip(places, values, strict=True)
            if value is not None
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        colour = COLOURS[program]
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    return "\n".join([*lines, "</g>\n"])


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50 ..."""
    step = 10.0 ** math.floor(math.log10(value))
    return next(step * factor for factor in (1, 2, 5, 10) if step * factor >= value)
