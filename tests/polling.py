"""Waiting for something to become true, with a deadline instead of a guess."""

import time
from collections.abc import Callable
from typing import TypeVar

import anyio

T = TypeVar("T")

_SHORTLY_S, _SOON_S, _LATER_S = 0.04, 1.0, 0.2
"""Between two looks, which are not free for an API server: at first, until so many seconds, and then."""


async def eventually(check: Callable[[], object], *, within_s: float = 10.0) -> None:
    """Polls until `check` returns something true; an AssertionError in it means: not yet."""
    problem = ""
    with anyio.move_on_after(within_s):
        while True:
            try:
                outcome = check()
                problem = f"it returned {outcome!r}"
            except AssertionError as error:
                outcome, problem = False, str(error)
            if outcome:
                return
            await anyio.sleep(0.02)
    raise AssertionError(f"not true within {within_s:g} s: {problem}")


def wait_until(check: Callable[[], T], *, within_s: float = 10.0) -> T:
    """The same for tests that block: returns what `check` returned."""
    began_s = time.monotonic()
    while True:
        try:
            outcome = check()
            problem = f"it returned {outcome!r}"
            if outcome:
                return outcome
        except AssertionError as error:
            problem = str(error)
        waited_s = time.monotonic() - began_s
        if waited_s > within_s:
            raise AssertionError(f"not true within {within_s:g} s: {problem}")
        time.sleep(_SHORTLY_S if waited_s < _SOON_S else _LATER_S)
