"""What is left out of imports is not loaded, and works when it is used after all."""

import gc
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.runtime.imports import trusting_later, used_later, without_collection

SHAPES = """
LOADED.append(__name__)
class Shape:
    def __init__(self, name="plain"):
        self.name = name
    @classmethod
    def named(cls, name):
        return cls(name)
class ShapeError(Exception):
    pass
"""
USER = """
from shapes import Shape
import shapes
from shapes import rings

Maybe = Shape | None

def made(value):
    return Shape(value)

def caught():
    try:
        raise shapes.ShapeError("no")
    except shapes.ShapeError as error:
        return str(error)
"""
FRUGAL = """
import sys
from controller.runtime.imports import frugal_imports
with frugal_imports(): import controller.app"""
UNUSED = ("box", "cryptography", "httpx", "httpx_ws", "jsonpath", "yaml", "wsproto")


def run(code: str) -> list[str]:
    """What a fresh Python prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The modules of a package `shapes` that were loaded; module `user` takes names out of it."""
    names: list[str] = []
    package = tmp_path / "shapes"
    package.mkdir()
    (package / "__init__.py").write_text("from builtins import LOADED\n" + SHAPES)
    (package / "rings.py").write_text("from builtins import LOADED\nLOADED.append(__name__)\nwidth = 3\n")
    (tmp_path / "user.py").write_text(USER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("builtins.LOADED", names, raising=False)
    yield names
    for name in ("shapes", "shapes.rings", "user"):
        sys.modules.pop(name, None)


def test_a_module_that_is_only_named_is_not_loaded(loaded: list[str]) -> None:
    with used_later("shapes"):
        import user  # type: ignore[import-not-found]
    assert loaded == []
    assert user.made("round").name == "round"
    assert loaded == ["shapes"]


def test_all_that_was_named_works(loaded: list[str]) -> None:
    with used_later("shapes"):
        import user
    import shapes  # type: ignore[import-not-found]

    assert isinstance(user.made("round"), shapes.Shape)
    assert isinstance(shapes.Shape(), user.Shape)
    assert user.Shape.named("flat").name == "flat"
    assert user.caught() == "no"
    assert user.rings.width == 3
    assert user.shapes.Shape is shapes.Shape
    assert loaded == ["shapes", "shapes.rings"]


def test_a_module_that_is_loaded_already_stays(loaded: list[str]) -> None:
    import shapes

    with used_later("shapes"):
        import user
    assert user.Shape is shapes.Shape
    assert sys.modules["shapes"] is shapes


def test_a_name_that_is_not_there_is_an_error_at_its_use(loaded: list[str]) -> None:
    with used_later("shapes", "no_such_module"):
        import no_such_module  # type: ignore[import-not-found]
        from shapes import Cube
    with pytest.raises(ModuleNotFoundError, match=r"shapes\.Cube"):
        Cube()
    with pytest.raises(ModuleNotFoundError, match=r"no_such_module"):
        _ = no_such_module.anything
    assert "no_such_module" not in sys.modules


def test_what_stands_in_is_no_base_class(loaded: list[str]) -> None:
    """It would be another class than the real one's, in silence."""
    with used_later("shapes"):
        from shapes import Shape
    with pytest.raises(TypeError, match=r"shapes\.Shape stands in"):
        type("Square", (Shape,), {})


def test_kr8s_is_imported_without_what_we_never_use() -> None:
    """F-64: they cost a third of all imports."""
    assert run(f"{FRUGAL}\nprint(*(name for name in {UNUSED!r} if name in sys.modules))") == []


def test_what_kr8s_has_of_them_works_all_the_same() -> None:
    """F-64: Box, jsonpath, x509 and the errors of web sockets are loaded when they are needed."""
    code = """
import kr8s._objects, kr8s._config, kr8s._portforward
import box, httpx_ws, jsonpath
print(type(kr8s._objects.Box({"a": {"b": 1}})) is box.Box, kr8s._objects.Box({"a": {"b": 1}}).a.b)
print(kr8s._objects.jsonpath.findall("$.a", {"a": 2}), kr8s._config.yaml.safe_load("c: 3")["c"])
print(sys.modules["kr8s._api"].x509.OID_COMMON_NAME.dotted_string, kr8s._portforward.httpx_ws is not httpx_ws)
print(kr8s._portforward.httpx_ws.HTTPXWSException is httpx_ws.HTTPXWSException)
"""
    assert run(FRUGAL + code) == ["True", "1", "[2]", "3", "2.5.4.3", "True", "True"]


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_a_question_needs_no_client(flag: str) -> None:
    """F-64: what a use of the command does not need is not imported."""
    names = ("aiohttp", "kr8s", "prometheus_client", "controller.app", "controller.plugins.registry")
    code = f"import sys; from controller.__main__ import main; main([{flag!r}]); "
    found = run(f"{code} print('then', *(name for name in {names!r} if name in sys.modules))")
    assert found[-1] == "then"


def test_no_garbage_is_looked_for_while_importing() -> None:
    """F-64."""
    assert gc.isenabled()
    with without_collection():
        assert not gc.isenabled()
        with without_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_authorities_are_read_when_they_are_needed() -> None:
    """F-64: a context of aiohttp's trusts nobody until it is used, and then whom it would have trusted."""
    usual = ssl.create_default_context()
    with trusting_later():
        late = ssl.create_default_context()
        unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        unverified.set_default_verify_paths()
    assert late.get_ca_certs() == []
    assert (late.verify_mode, late.check_hostname) == (ssl.CERT_REQUIRED, True)
    for context in (late, unverified):
        context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="example.com")
        assert type(context) is ssl.SSLContext
        assert context.get_ca_certs() == usual.get_ca_certs()


def test_contexts_made_afterwards_are_ordinary() -> None:
    methods = ssl.SSLContext.load_default_certs, ssl.SSLContext.set_default_verify_paths
    with trusting_later():
        pass
    assert (ssl.SSLContext.load_default_certs, ssl.SSLContext.set_default_verify_paths) == methods
    assert type(ssl.create_default_context()) is ssl.SSLContext
