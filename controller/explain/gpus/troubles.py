"""What is wrong on the GPUs of a node. Pure.

`picture.py` asks for each node. Invariant: nothing is called wrong that might only be hidden from whoever
looks, or that a bind under way explains.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from controller.explain.gpus.model import Finding, NodeGPUs, SharedGPU, Sight, Trouble
from controller.explain.gpus.shares import percent
from controller.kai.outcome import Failed
from controller.kai.reasons import Reason

_NAMED = 3


def judged(node: NodeGPUs, sight: Sight, card: Failed | None, *, is_known: bool) -> NodeGPUs:
    """The node with what is wrong on it.

    Args:
        node: The node.
        sight: What could be read.
        card: Why the memory of its GPUs is not known.
        is_known: Whether there is such a node; false as well if nodes cannot be read.
    """
    shared = tuple(replace(gpu, findings=tuple(_of_gpu(gpu, node, sight))) for gpu in node.shared)
    return replace(node, shared=shared, findings=tuple(_of_node(node, sight, card, is_known=is_known)))


def _of_node(node: NodeGPUs, sight: Sight, card: Failed | None, *, is_known: bool) -> Iterator[Finding]:
    if not is_known:
        if sight.nodes:
            yield Finding(Trouble.NODE_GONE, f"there is no node {node.name}, but pods are assigned to it")
        return
    if card is not None and card.reason == Reason.INVALID_NODE_MEMORY:
        yield Finding(Trouble.INVALID_NODE_MEMORY, card.message)
    used = sum(gpu.reservation is not None for gpu in node.shared) + node.taken_whole
    if node.total is not None and used > node.total:
        text = f"{used} GPUs of node {node.name} are in use, and it has {node.total} to allocate"
        yield Finding(Trouble.TOO_MANY_GPUS, text)
    for slices in node.slices:
        if slices.total is not None and slices.used > slices.total:
            text = (
                f"{slices.used} slices {slices.profile} of node {node.name} are in use, "
                f"and it has {slices.total} to allocate"
            )
            yield Finding(Trouble.TOO_MANY_GPUS, text)
    yield from _doubles(node)


def _doubles(node: NodeGPUs) -> Iterator[Finding]:
    """Reservations that stand in each other's way."""
    held = [gpu for gpu in node.shared if gpu.reservation is not None]
    for trouble, what, values in (
        (Trouble.DUPLICATE_RESERVATION, "GPU group", [gpu.group for gpu in held]),
        (Trouble.DUPLICATE_DEVICE, "device", [gpu.device for gpu in held]),
    ):
        for value, count in Counter(filter(None, values)).items():
            if count > 1:
                names = [
                    gpu.reservation.name
                    for gpu, own in zip(held, values, strict=True)
                    if gpu.reservation is not None and own == value
                ]
                text = f"{what} {value} of node {node.name} is held {count} times, by {named(names)}"
                yield Finding(trouble, text)


def _of_gpu(gpu: SharedGPU, node: NodeGPUs, sight: Sight) -> Iterator[Finding]:
    reservation, users = gpu.reservation, named([str(use.pod) for use in gpu.uses])
    if reservation is None:
        if sight.reservations:
            text = f"no reservation pod holds GPU group {gpu.group} on node {node.name} for {users}"
            yield Finding(Trouble.NO_RESERVATION, text)
    else:
        if not gpu.uses and sight.pods and sight.requests and not gpu.awaited:
            text = f"reservation pod {reservation.name} holds a GPU for nobody"
            yield Finding(Trouble.UNUSED_RESERVATION, text)
        if reservation.problem:
            yield Finding(Trouble.NO_DEVICE, reservation.problem)
        elif not reservation.device and gpu.uses:
            text = f"reservation pod {reservation.name} reports no device, but {users} is on its GPU"
            yield Finding(Trouble.NO_DEVICE, text)
    if gpu.is_over_committed:
        text = f"the shares of {users} are {percent(gpu.portion)} of the card"
        memory = f", {gpu.mib} of {node.card_mib} MiB" if node.card_mib is not None else ""
        yield Finding(Trouble.OVER_COMMITTED, f"{text}{memory}")
    astray = [use for use in gpu.uses if gpu.device and use.devices and gpu.device not in use.devices]
    for use in astray:
        told = named(sorted(use.devices))
        text = f"pod {use.pod} was told device {told}, and the device of its group is {gpu.device}"
        yield Finding(Trouble.OTHER_DEVICE, text)


def named(names: Sequence[str]) -> str:
    """Some names as a sentence lists them."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
