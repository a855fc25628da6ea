"""The reusable half knows nothing of what is built on it."""

import re
from pathlib import Path

import grimp
import pytest

import controller.runtime

RUNTIME = Path(controller.runtime.__file__).parent


def test_the_runtime_imports_nothing_else_of_ours() -> None:
    graph = grimp.build_graph("controller", cache_dir=None)
    modules = {"controller.runtime", *graph.find_descendants("controller.runtime")}
    assert len(modules) > 5
    imported = {other for module in modules for other in graph.find_modules_directly_imported_by(module)}
    assert imported <= modules


def test_only_the_door_and_its_credentials_know_kr8s() -> None:
    graph = grimp.build_graph("controller", include_external_packages=True, cache_dir=None)
    known = {"controller.runtime.credentials", "controller.runtime.door"}
    assert graph.find_modules_that_directly_import("kr8s") == known
    assert "httpx" not in graph.modules


@pytest.mark.parametrize("path", sorted(RUNTIME.glob("*.py")), ids=lambda path: path.name)
def test_the_runtime_does_not_know_what_it_is_for(path: Path) -> None:
    words = re.findall(r"gpu|plugin|bind\s?request", path.read_text(), re.IGNORECASE)
    assert words == []
