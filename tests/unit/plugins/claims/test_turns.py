"""Attempts that write one device claim: one after the other, each from where the last one left it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from controller.plugins.claims.api import Turns

Object = dict[str, Any]
pytestmark = pytest.mark.anyio


@asynccontextmanager
async def waiting() -> AsyncIterator[None]:
    yield


async def test_the_next_one_gets_the_claim_as_it_was_left() -> None:
    turns, seen = Turns(), list[Object | None]()

    async def attempt(left: Object | None) -> None:
        async with turns.take("team", "one", waiting) as turn:
            seen.append(turn.claim)
            await checkpoint()
            turn.claim = left

    async with anyio.create_task_group() as tasks:
        for number in (1, 2, None, 4):
            tasks.start_soon(attempt, None if number is None else {"number": number})
            await checkpoint()
    assert seen == [None, {"number": 1}, {"number": 2}, None]


async def test_nothing_is_kept_once_nobody_waits() -> None:
    turns = Turns()
    async with turns.take("team", "one", waiting) as turn:
        turn.claim = {"number": 1}
    async with turns.take("team", "one", waiting) as turn:
        assert turn.claim is None


async def test_what_a_failed_attempt_knew_is_not_handed_on() -> None:
    turns, seen = Turns(), list[Object | None]()

    async def second() -> None:
        async with turns.take("team", "one", waiting) as turn:
            seen.append(turn.claim)

    async with anyio.create_task_group() as tasks:
        with suppress(KeyError):
            async with turns.take("team", "one", waiting) as turn:
                tasks.start_soon(second)
                await checkpoint()
                turn.claim = {"number": 1}
                raise KeyError
    assert seen == [None]


async def test_one_who_gives_up_waiting_leaves_nothing_behind() -> None:
    turns = Turns()

    async def second(scope: anyio.CancelScope) -> None:
        with scope:
            async with turns.take("team", "one", waiting):
                raise AssertionError("it was cancelled before")

    async with anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()
        async with turns.take("team", "one", waiting) as turn:
            tasks.start_soon(second, scope)
            await checkpoint()
            turn.claim = {"number": 1}
            scope.cancel()
    async with turns.take("team", "one", waiting) as turn:
        assert turn.claim is None


async def test_claims_do_not_wait_for_each_other() -> None:
    turns = Turns()
    async with turns.take("team", "one", waiting), turns.take("team", "two", waiting) as turn:
        assert turn.claim is None
