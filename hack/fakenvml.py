"""A stand-in for NVIDIA's management library, for machines without a GPU: test equipment.

The real Python module (pynvml) loads it in place of libnvidia-ml.so.1 and calls it as it calls that: by C
function pointers, which fill in memory and return codes. Invariant: what is replaced ends at this border, so
all of pynvml is used as it is.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_uint, c_void_p, cast, memmove
from dataclasses import dataclass, field
from typing import Any, Self

import pynvml  # type: ignore[import-untyped]

_SLICES = 100
"""Handles of a card's slices lie between that of the card and that of the next one."""
_MOST_SLICES = 7


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU.

    Attributes:
        uuid: What it is called, byte by byte (a character is one byte).
        mig: Whether MIG is on; None: the card does not know MIG.
        slices: UUIDs of the slices that are visible.
        error: NVML's code when its handle is asked for, such as 15 for a lost GPU.
    """

    uuid: str
    mig: bool | None = None
    slices: tuple[str, ...] = ()
    error: int = 0


@dataclass(slots=True)
class Machine:
    """What NVML finds, and what was asked of it.

    Attributes:
        cards: The GPUs.
        library: Whether there is a library at all.
        init: NVML's code when it is started, such as 18 for a driver of another version.
        missing: Functions that this library does not have, as old ones.
        hang_s: Seconds for which the driver does not answer at first, nor lets go of the thread that asks.
        opened: How often it was started.
        closed: How often it was shut down.
    """

    cards: tuple[Card, ...] = ()
    library: bool = True
    init: int = 0
    missing: tuple[str, ...] = ()
    hang_s: int = 0
    opened: int = field(default=0, init=False)
    closed: int = field(default=0, init=False)

    @classmethod
    def of(cls, text: str) -> Self:
        """Reads a machine from JSON: `{"cards": [{"uuid": "GPU-1", "mig": true, "slices": ["MIG-1"]}]}`.

        All fields of `Machine` and `Card` may be there.
        """
        told = json.loads(text)
        cards = tuple(
            Card(**{**card, "slices": tuple(card.get("slices", ()))}) for card in told.pop("cards", ())
        )
        return cls(cards=cards, **told)


class Library:
    """The functions, under the names that the real library gives them."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        functions: dict[str, tuple[Callable[..., object], list[Any]]] = {
            "nvmlInitWithFlags": (self._start, [c_uint]),
            "nvmlShutdown": (self._shut_down, []),
            "nvmlDeviceGetCount_v2": (self._count, [POINTER(c_uint)]),
            "nvmlDeviceGetHandleByIndex_v2": (self._card, [c_uint, c_void_p]),
            "nvmlDeviceGetMigMode": (self._mig_mode, [c_void_p, POINTER(c_uint), POINTER(c_uint)]),
            "nvmlDeviceGetMaxMigDeviceCount": (self._most_slices, [c_void_p, POINTER(c_uint)]),
            "nvmlDeviceGetMigDeviceHandleByIndex": (self._slice, [c_void_p, c_uint, c_void_p]),
            "nvmlDeviceGetUUID": (self._uuid, [c_void_p, c_void_p, c_uint]),
        }
        for name, (function, arguments) in functions.items():
            if name not in machine.missing:
                setattr(self, name, CFUNCTYPE(c_int, *arguments)(function))
        # A text that is returned must outlive the call.
        self._text = c_char_p(b"an error of the stand-in")
        self.nvmlErrorString = CFUNCTYPE(c_void_p, c_int)(lambda _code: cast(self._text, c_void_p).value)

    def _start(self, _flags: int) -> int:
        if self._machine.hang_s:
            sys.stderr.write("the stand-in hangs\n")
            ctypes.CDLL(None).sleep(self._machine.hang_s)
        self._machine.opened += not self._machine.init
        return self._machine.init

    def _shut_down(self) -> int:
        self._machine.closed += 1
        return 0

    def _count(self, count: Any) -> int:  # noqa: ANN401 -- a pointer, which ctypes has no type for
        count[0] = len(self._machine.cards)
        return self._running()

    def _card(self, index: int, handle: int) -> int:
        if index >= len(self._machine.cards):
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        _write_handle(handle, (index + 1) * _SLICES)
        return self._running() or self._machine.cards[index].error

    def _mig_mode(self, card: int, current: Any, pending: Any) -> int:  # noqa: ANN401 -- as above
        mig = self._machine.cards[card // _SLICES - 1].mig
        if mig is None:
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        current[0] = pending[0] = int(mig)
        return self._running()

    def _most_slices(self, _card: int, count: Any) -> int:  # noqa: ANN401 -- as above
        count[0] = _MOST_SLICES
        return self._running()

    def _slice(self, card: int, index: int, handle: int) -> int:
        # As on real cards, the slices need not be the first of those that there may be.
        number = index - (_MOST_SLICES - len(self._machine.cards[card // _SLICES - 1].slices))
        if number < 0:
            return int(pynvml.NVML_ERROR_NOT_FOUND)
        _write_handle(handle, card + 1 + number)
        return self._running()

    def _uuid(self, handle: int, buffer: int, size: int) -> int:
        card = self._machine.cards[handle // _SLICES - 1]
        number = handle % _SLICES
        text = (card.slices[number - 1] if number else card.uuid).encode("latin-1") + b"\0"
        if len(text) > size:
            return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        memmove(buffer, text, len(text))
        return self._running()

    def _running(self) -> int:
        """The code of a question: the library answers between start and shutdown only."""
        machine = self._machine
        return 0 if machine.opened > machine.closed else int(pynvml.NVML_ERROR_UNINITIALIZED)


def _write_handle(address: int, handle: int) -> None:
    ctypes.c_void_p.from_address(address).value = handle


def install(machine: Machine) -> None:
    """Has pynvml find this machine, whatever the real one has.

    Args:
        machine: What there is to be found; a machine that was installed before is forgotten.
    """

    def load(name: str) -> Library:
        if not machine.library:
            raise OSError(f"{name}: cannot open shared object file: No such file or directory")
        return Library(machine)

    pynvml.CDLL = load
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()
