"""Writes Grafana's dashboard and the alert rules for a Prometheus without the operator.

hack/monitoring            write config/grafana/kai-binder.json and config/prometheus/plain/rules.yaml
hack/monitoring --check    write nothing; exit 1 if one is out of date

The dashboard is made from hack/dashboard.yaml, the plain rules from config/prometheus/prometheus_rule.yaml.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HACK = Path(__file__).resolve().parent
PANELS = HACK / "dashboard.yaml"
RULE = HACK.parent / "config/prometheus/prometheus_rule.yaml"
PLAIN = HACK.parent / "config/prometheus/plain/rules.yaml"
DASHBOARD = HACK.parent / "config/grafana/kai-binder.json"
HEAD = "# For rule_files of a Prometheus. Written by hack/monitoring from ../prometheus_rule.yaml.\n"

_WIDTH, _HEIGHT = 8, 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture of the dashboard.

    Attributes:
        row: Its heading.
        title: Its own.
        unit: As Grafana names it.
        text: What it says.
        lines: Expressions by their legend.
        stacked: Whether the lines are parts of a whole.
    """

    row: str
    title: str
    unit: str
    text: str
    lines: dict[str, str]
    stacked: bool = False


def panels() -> list[Panel]:
    """The panels in their order."""
    rows = yaml.safe_load(PANELS.read_text())
    return [Panel(row=row, **panel) for row, listed in rows.items() for panel in listed]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="hack/monitoring", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is out of date")
    check = parser.parse_args(argv).check
    old = [path for path, text in files() if not path.is_file() or path.read_text() != text]
    if check:
        for path in old:
            print(f"{path.relative_to(HACK.parent)} is out of date; run hack/monitoring", file=sys.stderr)
        return 1 if old else 0
    for path, text in files():
        path.write_text(text)
    return 0


def files() -> Iterator[tuple[Path, str]]:
    """What is to be written where."""
    yield DASHBOARD, json.dumps(dashboard(), indent=2) + "\n"
    yield PLAIN, HEAD + yaml.safe_dump(rules(), sort_keys=False, width=110, allow_unicode=True)


def rules() -> dict[str, Any]:
    """The alert rules as Prometheus itself reads them."""
    return {"groups": yaml.safe_load(RULE.read_text())["spec"]["groups"]}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "title": "kai-binder",
        "uid": "kai-binder",
        "description": "The binder of KAI Scheduler; docs/metrics.md says more.",
        "tags": ["kai-scheduler"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_source_variable(), _job_variable()]},
        "annotations": {"list": []},
        "panels": list(_placed()),
    }


def _source_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _job_variable() -> dict[str, Any]:
    query = "label_values(kai_binder_leading, job)"
    return {
        "name": "job",
        "label": "Binder",
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "job"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _placed() -> Iterator[dict[str, Any]]:
    """Rows and panels with their places: three panels beside each other."""
    row, x, y, number = "", 0, 0, 0
    for panel in panels():
        if panel.row != row:
            y += _HEIGHT if row else 0
            row, x, number = panel.row, 0, number + 1
            place = {"x": 0, "y": y, "w": 3 * _WIDTH, "h": 1}
            yield {
                "id": number,
                "type": "row",
                "title": row,
                "collapsed": False,
                "gridPos": place,
                "panels": [],
            }
            y += 1
        number += 1
        yield _panel(number, panel, {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT})
        x += _WIDTH


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": expr, "legendFormat": legend}
        for index, (legend, expr) in enumerate(panel.lines.items())
    ]
    custom: dict[str, Any] = {"fillOpacity": 20 if panel.stacked else 0, "showPoints": "never"}
    if panel.stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": targets,
    }
