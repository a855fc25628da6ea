"""How a pod is prepared for nvfractions: what it asks for, as annotations of its container (N-75, N-76).

The component on the node that divides GPUs reads them. Nothing else of the pod is changed.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from controller.admission.draft import Draft
from controller.kai.fractions import MEMORY_LIMIT, MEMORY_REQUEST, key, portion_limit_key, problem_of_name
from controller.kai.memory import whole_number
from controller.kai.names import GPU_FRACTION_LIMIT, GPU_MEMORY, GPU_MEMORY_LIMIT
from controller.kai.outcome import Failed
from controller.kai.pods import annotations_of, full_name
from controller.kai.quantity import mebibytes
from controller.kai.reasons import Reason
from controller.kai.sharing import container_of, shown

_KEYS: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {
        GPU_MEMORY: lambda container: key(container, MEMORY_REQUEST),
        GPU_MEMORY_LIMIT: lambda container: key(container, MEMORY_LIMIT),
        GPU_FRACTION_LIMIT: portion_limit_key,
    }
)
"""What people write, and the annotation of the container that it becomes."""


def prepare(draft: Draft) -> Failed | None:
    """Writes what people ask for as the component on the node reads it."""
    found = container_of(draft.pod, strict=True)
    if isinstance(found, Failed):
        return found
    container = str(found[1]["name"])
    for source, key_of in _KEYS.items():
        text, name = annotations_of(draft.pod).get(source), key_of(container)
        if text is None:
            continue
        if source == GPU_MEMORY:
            mib = whole_number(text)
            if mib is None:
                continue  # the validation refuses it
            text = mebibytes(mib)
        problem = problem_of_name(container, name)
        if problem is not None:
            return _misconfigured(draft, problem)
        present = annotations_of(draft.pod).get(name)
        if present not in (None, text):
            return _misconfigured(
                draft,
                f"annotation {source} conflicts with annotation {name}: that is {shown(present)}, "
                f"and {source} makes it {shown(text)}",
            )
        draft.annotate(name, text)
    return None


def _misconfigured(draft: Draft, text: str) -> Failed:
    return Failed(Reason.INVALID_GPU_CONFIG, f"pod {full_name(draft.pod)}: {text}", retry=False)
