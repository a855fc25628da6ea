"""Prometheus' engine is built from what is locked here, by the Go that builds all else."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

from controlplane import build
from promql.engine import MODULE, PROGRAM, component


def test_it_is_locked() -> None:
    part = component()
    assert part.version == build.locked_version(PROGRAM, MODULE)
    assert f"{MODULE} {part.version} h1:" in (PROGRAM / "go.sum").read_text()
    assert part.key.startswith(f"promql-{part.version}-")


def test_a_go_that_builds_the_control_plane_builds_it() -> None:
    found = re.search(r"^go (\d+)\.(\d+)(?:\.0)?$", (PROGRAM / "go.mod").read_text(), re.M)
    assert found is not None, "no newer patch than the first may be asked for"
    assert (int(found[1]), int(found[2])) <= build.OLDEST_GO


def test_a_changed_program_is_built_anew(tmp_path: Path) -> None:
    shutil.copytree(PROGRAM, tmp_path / "program")
    part = replace(component(), lock=tmp_path / "program")
    assert part.key == component().key
    with (tmp_path / "program" / "main.go").open("a") as file:
        file.write("// changed\n")
    assert part.key != component().key
