"""Whether what a pod asks for makes sense by itself: the texts of its annotations (B-119, N-78…N-84). Pure.

Numbers are read by the functions that the binder reads them with, which take less than Python and Go do:
no padding, no underscores, no digits of other scripts, no NaN.
"""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from fractions import Fraction

from controller.admission.problems import Problem, field_of, forbidden, invalid
from controller.kai.fractions import COMPUTE_MODE, MEMORY_LIMIT, MEMORY_REQUEST, key, portion_limits
from controller.kai.memory import MIB, whole_number
from controller.kai.names import (
    DEVICE_COUNT,
    GPU_FRACTION,
    GPU_FRACTION_LIMIT,
    GPU_MEMORY,
    GPU_MEMORY_LIMIT,
)
from controller.kai.quantity import quantity
from controller.kai.request import ComputeMode
from controller.kai.sharing import asks_for_share, device_count_in, fraction_in, shown

_SHARE_LIMIT = re.compile(r"[0-9]{1,9}(\.[0-9]{1,5})?|\.[0-9]{1,5}")
_SMALLEST_SHARE = Decimal("0.000001")
"""Less is no whole MiB of any GPU, so that it could not be bound with a limit, nor be of use without one."""
_SMALLEST_COUNTED = Decimal("0.005")
"""What is less, the scheduler takes for 0.00 of a GPU."""
_UNIT = re.compile(r".*[0-9.]([KMGTPE]i|[kMGTPE])", re.DOTALL)


def problems_of_texts(annotations: Mapping[str, str]) -> Iterator[Problem]:
    """What is wrong with what these annotations ask for, whichever container it is for."""
    fraction, memory = annotations.get(GPU_FRACTION), annotations.get(GPU_MEMORY)
    if fraction is not None and memory is not None:
        yield forbidden(GPU_MEMORY, f"a share is given by {GPU_FRACTION} or by {GPU_MEMORY}, not by both")
    share = _share_of(annotations)
    if fraction is not None and share is None:
        yield invalid(GPU_FRACTION, fraction, "must be a decimal number above 0 and below 1, such as 0.5")
    elif share is not None and share < _SMALLEST_SHARE:
        text = f"must be at least {_SMALLEST_SHARE}, since less is no whole MiB of any GPU"
        yield invalid(GPU_FRACTION, fraction, text)
    if memory is not None and whole_number(memory) is None:
        text = "must be a whole number of MiB above 0, without a unit, such as 4096"
        yield invalid(GPU_MEMORY, memory, text)
    yield from _of_count(annotations)
    yield from _of_fraction_limits(annotations)
    yield from _of_memory_limit(annotations)


def problems_of_container(annotations: Mapping[str, str], container: str) -> Iterator[Problem]:
    """What is wrong with the annotations of the container that gets the share.

    Args:
        annotations: Of a pod that asks for a share.
        container: Its name.
    """
    for name, wanted in portion_limits(annotations):
        if wanted != container:
            yield forbidden(name, f"the share is for container {container}")
    name = key(container, COMPUTE_MODE)
    mode, modes = annotations.get(name), [mode.value for mode in ComputeMode]
    if mode is not None and mode not in modes:
        yield invalid(name, mode, f"must be {' or '.join(modes)}")
    yield from _of_amounts(annotations, container)


def warning_of_share(annotations: Mapping[str, str]) -> str | None:
    """What to tell of a share that the scheduler counts as none; None if it does not."""
    share = _share_of(annotations)
    if share is None or share >= _SMALLEST_COUNTED:
        return None
    counted = "the scheduler counts hundredths of a GPU, and takes it for 0.00"
    return f"{field_of(GPU_FRACTION)} is {shown(annotations[GPU_FRACTION])}: {counted}"


def _share_of(annotations: Mapping[str, str]) -> Decimal | None:
    """The share that is asked for, if it is one."""
    share = fraction_in(annotations.get(GPU_FRACTION, ""))
    return share if share is not None and 0 < share < 1 else None


def _of_count(annotations: Mapping[str, str]) -> Iterator[Problem]:
    count = annotations.get(DEVICE_COUNT)
    if count is None:
        return
    if not asks_for_share(annotations):
        text = f"it is for pods that ask for a share of each device, by {GPU_FRACTION} or {GPU_MEMORY}"
        yield forbidden(DEVICE_COUNT, text)
    if not device_count_in(count):
        yield invalid(DEVICE_COUNT, count, "must be a whole number above 0, such as 2")


def _of_fraction_limits(annotations: Mapping[str, str]) -> Iterator[Problem]:
    asked = annotations.get(GPU_FRACTION_LIMIT)
    # What the webhook made of it says the same, and is not told of twice.
    found = [name for name, _ in portion_limits(annotations) if annotations[name] != asked]
    for name in (*(() if asked is None else (GPU_FRACTION_LIMIT,)), *found):
        if GPU_FRACTION not in annotations:
            yield forbidden(name, f"it needs {GPU_FRACTION}, which is not set")
        text, share = annotations[name], _share_of(annotations)
        limit = Decimal(text) if _SHARE_LIMIT.fullmatch(text) else Decimal(0)
        if not 0 < limit < 1:
            must = "must be a decimal number above 0 and below 1 with at most 5 decimals, such as 0.75"
            yield invalid(name, text, must)
        elif share is not None and limit <= share:
            yield invalid(name, text, f"must be more than {GPU_FRACTION}, which is {share}")


def _of_memory_limit(annotations: Mapping[str, str]) -> Iterator[Problem]:
    text, memory = annotations.get(GPU_MEMORY_LIMIT), annotations.get(GPU_MEMORY)
    if text is None:
        return
    if memory is None:
        yield forbidden(GPU_MEMORY_LIMIT, f"it needs {GPU_MEMORY}, which is not set")
    limit, mib = _amount(text), whole_number(memory)
    if limit is None or not _UNIT.fullmatch(text):
        must = "must be an amount of memory above 0 that names its unit, such as 8Gi"
        yield invalid(GPU_MEMORY_LIMIT, text, must)
    elif mib is not None and limit < mib * MIB:
        yield invalid(GPU_MEMORY_LIMIT, text, f"must be at least {GPU_MEMORY}, which is {mib} MiB")


def _of_amounts(annotations: Mapping[str, str], container: str) -> Iterator[Problem]:
    request, limit = key(container, MEMORY_REQUEST), key(container, MEMORY_LIMIT)
    amounts = {name: _amount(annotations[name]) for name in (request, limit) if name in annotations}
    for name, amount in amounts.items():
        if amount is None:
            yield invalid(name, annotations[name], "must be an amount of memory above 0, such as 4Gi")
    mib = whole_number(annotations.get(GPU_MEMORY))
    asked, most = amounts.get(request), amounts.get(limit)
    if asked is not None and mib is not None and asked != mib * MIB:
        yield invalid(request, annotations[request], f"must be what {GPU_MEMORY} says, {mib} MiB")
    if asked is not None and most is not None and asked > most:
        must = f"must be at least the request, which is {annotations[request]}"
        yield invalid(limit, annotations[limit], must)
    if limit in annotations:
        yield from _of_limit_beside(annotations, limit)


def _of_limit_beside(annotations: Mapping[str, str], limit: str) -> Iterator[Problem]:
    """N-83: people write the limit of a share in one of two ways, and not beside the other."""
    if GPU_FRACTION in annotations:
        text = f"with {GPU_FRACTION} the limit is {GPU_FRACTION_LIMIT}"
        yield forbidden(limit, text)
    elif GPU_MEMORY in annotations and GPU_MEMORY_LIMIT not in annotations:
        yield forbidden(limit, f"with {GPU_MEMORY} the limit is {GPU_MEMORY_LIMIT}")


def _amount(text: str) -> Fraction | None:
    """A positive quantity; None if it is none."""
    try:
        amount = quantity(text)
    except ValueError:
        return None
    return amount if amount > 0 else None
