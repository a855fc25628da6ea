"""The house stays easy to see: short files, short functions, imports that go one way."""

import ast
from pathlib import Path

import grimp
import pytest

import controller
from controller.plugins.registry import BUILT_IN

ROOT = Path(controller.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
MOST_LINES = 350
MOST_LINES_OF_A_FUNCTION = 45
LAYERS = (
    ("__main__",),
    ("command",),
    ("app", "webhook", "logs", "setting_texts"),
    ("planning",),
    ("settings", "setting_base", "setting_types", "sources"),
    ("binder", "admission", "explain"),
    ("plugins", "reservation"),
    ("kai",),
    ("runtime", "agent"),
)
"""From the top down; a part imports from its own layer and from those below."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Those of a file that stand in no other function."""
    tree = ast.parse(path.read_text())
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inner = {id(other) for node in found for other in ast.walk(node) if other is not node}
    return [node for node in found if id(node) not in inner]


def part_of(module: str) -> str:
    """The part of the house that a module belongs to."""
    return module.split(".")[1]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_can_be_read_in_one_go(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_function_fits_a_screen(path: Path) -> None:
    lines = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions(path)}
    assert {name: count for name, count in lines.items() if count > MOST_LINES_OF_A_FUNCTION} == {}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_module_keeps_no_state(path: Path) -> None:
    """What is assigned at the top is a constant, a type or a name for one: never a list to append to."""
    mutable = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
    kept = []
    for node in ast.parse(path.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        value = getattr(node, "value", None)
        if isinstance(value, mutable) and any(name.lstrip("_").upper() != name.lstrip("_") for name in names):
            kept += [name for name in names if name != "__all__"]
        if isinstance(node, ast.AugAssign):
            kept += names
    assert kept == []
    assert not any(isinstance(node, ast.Global) for node in ast.walk(ast.parse(path.read_text())))


def test_every_part_has_its_place() -> None:
    parts = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in FILES} - {"__init__"}
    assert parts == {part for layer in LAYERS for part in layer}


def test_imports_go_down() -> None:
    """Late imports, and those for types only, count as others do."""
    level = {part: number for number, layer in enumerate(LAYERS) for part in layer}
    graph = grimp.build_graph("controller", cache_dir=None)
    upward = [
        (module, imported)
        for module in graph.modules - {"controller"}
        for imported in graph.find_modules_directly_imported_by(module) - {"controller"}
        if level[part_of(imported)] < level[part_of(module)]
    ]
    assert upward == []


def test_plugins_and_reservation_do_not_know_each_other() -> None:
    graph = grimp.build_graph("controller", cache_dir=None)
    crossing = [
        (module, imported)
        for module in graph.modules - {"controller"}
        for imported in graph.find_modules_directly_imported_by(module) - {"controller"}
        if {part_of(module), part_of(imported)} == {"plugins", "reservation"}
    ]
    assert crossing == []


def test_the_webhook_knows_only_what_the_words_mean() -> None:
    graph = grimp.build_graph("controller", cache_dir=None)
    known = {
        part_of(imported)
        for module in graph.find_descendants("controller.admission")
        for imported in graph.find_modules_directly_imported_by(module) - {"controller"}
    }
    assert known == {"admission", "kai", "runtime"}


def test_no_plugin_knows_another() -> None:
    """Beside what is no plugin's own, a plugin imports only its own modules."""
    plugins = {cls.__module__.split(".")[2] for cls in BUILT_IN}
    assert len(plugins) == len(BUILT_IN)
    graph = grimp.build_graph("controller", cache_dir=None)
    owner = {
        module: module.split(".")[2]
        for module in graph.find_descendants("controller.plugins")
        if module.split(".")[2] in plugins
    }
    crossing = [
        (module, imported)
        for module in owner
        for imported in graph.find_modules_directly_imported_by(module)
        if imported in owner and owner[imported] != owner[module]
    ]
    assert crossing == []


def test_what_is_replaced_is_a_field() -> None:
    """By name only: type checkers do not look into msgspec's replace as they do into that of dataclasses."""
    trees = [ast.parse(path.read_text()) for path in FILES]
    fields = {
        line.target.id
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for line in node.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }
    replaced = {
        word.arg
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "replace"
        for word in node.keywords
    }
    assert replaced
    assert replaced <= fields
