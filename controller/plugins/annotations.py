"""Annotations of a share that more than one plugin writes, for the component that divides GPUs on the node.

They are returned and travel with the Binding, so that a failed bind leaves none (N-56); what is on the pod
already, put there by the webhook or by its author, stays.
"""

from collections.abc import Iterable

from controller.kai.fractions import MEMORY_REQUEST, key, problem_of_name, said
from controller.kai.memory import MIB, Card, card_of, granted_at_most_mib, share_of
from controller.kai.outcome import Failed
from controller.kai.pods import full_name
from controller.kai.quantity import mebibytes, quantity
from controller.kai.reasons import Reason
from controller.kai.sharing import portion_of, shown
from controller.plugins.base import BindContext

_CDI_PREFIX = "k8s.device-plugin.nvidia.com/gpu="


def device_names(gpu_ids: Iterable[str], *, cdi: bool) -> str:
    """The devices of a share, as a container runtime takes them.

    Args:
        gpu_ids: As the reservations report them.
        cdi: Whether by the names of the Container Device Interface.
    """
    return ",".join(f"{_CDI_PREFIX if cdi else ''}{gpu}" for gpu in gpu_ids)


def refusal_of_name(context: BindContext, container: str, name: str) -> Failed | None:
    """The failure of a pod whose container's name is too long for this annotation."""
    problem = problem_of_name(container, name)
    if problem is None:
        return None
    return Failed(Reason.INVALID_GPU_CONFIG, f"pod {full_name(context.pod)}: {problem}", retry=False)


def _excess(context: BindContext, name: str, text: str, card: Card) -> Failed | None:
    """The failure of a pod that says it was granted more than it was: whoever wrote it may change it."""
    try:
        asked = quantity(text)
    except ValueError:
        return None  # it is refused where it matters
    portion = portion_of(context.request)
    if isinstance(portion, Failed):
        return portion
    granted_mib = granted_at_most_mib(portion, card)
    if asked <= granted_mib * MIB:
        return None
    says = f"annotation {name} of pod {full_name(context.pod)} says {shown(text)}"
    text = (
        f"{says}, more than the request grants: portion {portion} is at most {granted_mib} MiB, "
        f"with what rounding may have taken off; {card.source}"
    )
    return Failed(Reason.MEMORY_EXCEEDS_GRANT, text)


def memory_request(context: BindContext, container: str) -> dict[str, str] | Failed:
    """The memory of each GPU that a container was granted, unless the pod says it already (N-43).

    It fails if the pod says more than that.
    """
    name = key(container, MEMORY_REQUEST)
    impossible = refusal_of_name(context, container, name)
    if impossible is not None:
        return impossible
    card = card_of(context.node)
    text = said(context.pod, container, MEMORY_REQUEST)
    if text is not None:
        # Whether it was granted can be seen only where the card is known.
        excess = None if isinstance(card, Failed) else _excess(context, name, text, card)
        return excess or {}
    share = card if isinstance(card, Failed) else share_of(context.request, context.pod, card)
    return share if isinstance(share, Failed) else {name: mebibytes(share.mib)}
