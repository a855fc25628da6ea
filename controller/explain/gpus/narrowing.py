"""The picture for one namespace: its own pods by name, all others on a GPU as one. Pure."""

from collections.abc import Sequence
from fractions import Fraction

from msgspec.structs import replace

from controller.explain.gpus.model import Holding, NodeGPUs, Picture, Pod, Use
from controller.explain.gpus.shares import Size


def narrowed(picture: Picture, namespace: str) -> Picture:
    """The nodes on which a namespace has pods; those of other namespaces become one on each GPU."""
    nodes = []
    for node in picture.nodes:
        shared, whole = node.shared, node.whole
        pods = [use.pod for gpu in shared for use in gpu.uses]
        pods += (holding.pod for holding in whole)
        pods += (holding.pod for slices in node.slices for holding in slices.holdings)
        if any(pod.namespace == namespace for pod in pods):
            nodes.append(_narrowed(node, namespace))
    return replace(picture, nodes=tuple(nodes))


def _narrowed(node: NodeGPUs, namespace: str) -> NodeGPUs:
    return replace(
        node,
        shared=tuple(replace(gpu, uses=_merged_uses(gpu.uses, namespace)) for gpu in node.shared),
        whole=_merged(node.whole, namespace),
        slices=tuple(replace(slices, holdings=_merged(slices.holdings, namespace)) for slices in node.slices),
    )


def _merged_uses(uses: Sequence[Use], namespace: str) -> tuple[Use, ...]:
    own = [use for use in uses if use.pod.namespace == namespace]
    others = [use for use in uses if use.pod.namespace != namespace]
    if not others:
        return tuple(own)
    portions = [use.size.portion for use in others]
    sizes = [use.size.mib for use in others]
    size = Size(
        sum(filter(None, portions), Fraction(0)) if None not in portions else None,
        sum(filter(None, sizes)) if None not in sizes else None,
        sum((use.size.slack for use in others), Fraction(0)),
    )
    return (*own, Use(Pod("", "", "", len(others)), size, None))


def _merged(holdings: Sequence[Holding], namespace: str) -> tuple[Holding, ...]:
    own = [holding for holding in holdings if holding.pod.namespace == namespace]
    others = [holding for holding in holdings if holding.pod.namespace != namespace]
    if not others:
        return tuple(own)
    return (*own, Holding(Pod("", "", "", len(others)), sum(holding.count for holding in others)))
