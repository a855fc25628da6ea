"""How a pod is prepared for gpumemorylimit: one variable, by which the limit gets there (B-117, N-74).

Opt-in, and of no use without gpusharing, whose map holds the value. The entry is optional: whether there is a
limit is the binder's to judge, which binds no pod without one.
"""

from controller.admission.draft import Draft
from controller.admission.gpusharing import entry, place_of
from controller.admission.rules import Rules
from controller.kai.outcome import Failed
from controller.kai.sharing import container_of, target_of


def prepare(draft: Draft, rules: Rules) -> Failed | None:
    """Has the container with the share take its limit from the capabilities map."""
    found, target = container_of(draft.pod, strict=True), target_of(draft.pod, strict=True)
    if isinstance(found, Failed):
        return found
    if isinstance(target, Failed):
        return target
    draft.set_env(place_of(found[0]), entry(target, rules.limit_variable, optional=True))
    return None
