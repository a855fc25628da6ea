"""How start, memory and the cost of a bind grow with the cluster."""

from __future__ import annotations

from benchmark.bench import Bench
from benchmark.binding import ended_burst
from benchmark.figures import Figure

SIZES = (100, 1_000, 10_000)
"""Pods that are there, of about 7 KB; a tenth as many nodes."""
BINDS = 100
CURVES = (
    "start to first bind",
    "CPU until the first bind",
    "peak memory",
    "CPU per bind after the first",
    "requests per bind",
)
NODES = "/api/v1/nodes"


def at_size(bench: Bench, size: int) -> list[Figure]:
    """100 binds in a cluster of this size."""
    return [
        Figure(f"{size:,} pods: {figure.name}", figure.value, figure.unit)
        for figure in ended_burst(bench, bench.pods(BINDS))
        if figure.name in CURVES
    ]


def grow(bench: Bench, size: int) -> None:
    """Brings the cluster to this size."""
    present = bench.plane.request("GET", f"{NODES}?limit=1")["metadata"].get("remainingItemCount", 0)
    names = bench.names("node", max(0, size // 10 - present - 1))
    bench.create(NODES, ({"metadata": {"name": name}} for name in names))
    bench.fill(size)
