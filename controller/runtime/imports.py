"""Imports for less CPU.

Called by the command, around all its imports. A start pays for each in CPU, and where a container may use a
tenth of a CPU, 0.1 s of imports are a second before the first answer.

Invariant: what is left out works whenever it is used after all; it is loaded then.
"""

import gc
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

_UNUSED = ("box", "cryptography", "dotenv", "httpx", "httpx_ws", "jsonpath", "yaml")
"""What kr8s is defined with, and we do not use, or not at the start (cryptography, yaml)."""


@contextmanager
def frugal_imports() -> Iterator[None]:
    """Within the block, imports take as little as they can."""
    with without_collection(), trusting_later(), used_later(*_UNUSED):
        yield


@contextmanager
def without_collection() -> Iterator[None]:
    """Within the block no garbage is looked for: imports make many objects and drop few."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def used_later(*names: str) -> Iterator[None]:
    """Within the block, importing one of these modules gives a stand-in, unless it is loaded already.

    For modules that a library names and we never use. Plain lazy loading does not help with kr8s, which takes
    classes out of them while it is defined.

    Args:
        names: Top-level modules, such as `cryptography`. What the block takes out of them may be named,
            annotated with and called. A name that is caught by `except` must be looked up in its module
            then, and not be kept before.

    Raises:
        TypeError: The block makes a class of its own out of one that stands in.
    """
    stand_ins = {name: _StandIn(name) for name in names if name not in sys.modules}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, stand_in in stand_ins.items():
            stand_in.complete()
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]  # from here on, who imports it gets the real one


class _StandIn(ModuleType):
    """A module of which names are taken; once complete, it hands out what the real one has."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._is_complete = False

    def complete(self) -> None:
        self._is_complete = True

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the real module has there
        if name.startswith("__"):  # the import system asks for these, and would load the module by that
            raise AttributeError(f"module {self.__name__!r} stands in and has no {name!r}")
        if self._is_complete:
            return _real(self.__name__, name)
        return _Named(name, (), {"__module__": self.__name__})


class _Named(type):
    """A class or sub-module that was named, not used: made a class, since annotations combine classes."""

    def __new__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> "_Named":
        if bases:
            raise TypeError(
                f"{bases[0].__module__}.{bases[0].__name__} stands in: it can be no base of {name}"
            )
        return super().__new__(cls, name, bases, members)

    def __getattr__(cls, name: str) -> Any:  # noqa: ANN401 - as above
        if name.startswith("__"):
            raise AttributeError(f"{cls.__module__}.{cls.__name__} stands in and has no {name!r}")
        return getattr(_real(cls.__module__, cls.__name__), name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as above
        return _real(cls.__module__, cls.__name__)(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _real(cls.__module__, cls.__name__))


def _real(module: str, name: str) -> Any:  # noqa: ANN401 - as above
    """What `from module import name` gives."""
    loaded = import_module(module)
    try:
        return getattr(loaded, name)
    except AttributeError:
        return import_module(f"{module}.{name}")


@contextmanager
def trusting_later() -> Iterator[None]:
    """Within the block, TLS contexts that shall trust the system's authorities read them at their first use.

    aiohttp makes two while it is imported, which costs 40 ms of CPU. We use neither: a kubeconfig names the
    authority of its server, as a rule.
    """
    methods = {
        name: getattr(ssl.SSLContext, name) for name in ("load_default_certs", "set_default_verify_paths")
    }
    for name in methods:
        setattr(ssl.SSLContext, name, _LateTrust.postpone)
    try:
        yield
    finally:
        for name, method in methods.items():
            setattr(ssl.SSLContext, name, method)


class _LateTrust(ssl.SSLContext):
    """A context that trusts nobody yet; it becomes an ordinary one when it is used."""

    @staticmethod
    def postpone(context: ssl.SSLContext, *_purpose: object) -> None:
        context.__class__ = _LateTrust

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:  # noqa: ANN401 - as its base has them
        return self._load().wrap_bio(*args, **kwargs)

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:  # noqa: ANN401 - as its base has them
        return self._load().wrap_socket(*args, **kwargs)

    def _load(self) -> ssl.SSLContext:
        self.__class__ = ssl.SSLContext  # type: ignore[assignment]
        self.load_default_certs()
        return self
