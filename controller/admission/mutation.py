"""What a new pod that asks for a share is made of, plugin by plugin (B-112…B-118, N-71…N-76). Pure.

Invariant: preparing a pod that is prepared changes nothing, since the API server may ask again.
"""

from collections.abc import Callable

from controller.admission import deviceaccess, gpusharing, memorylimit, nvfractions
from controller.admission.draft import Draft
from controller.admission.rules import Rules
from controller.kai.fractions import named_container
from controller.kai.names import CONTAINER_NAME
from controller.kai.outcome import Failed
from controller.kai.pods import annotation, annotations_of
from controller.kai.sharing import asks_for_share, container_of
from controller.runtime.client import Object


def prepared(pod: Object, rules: Rules, suffix: Callable[[], str]) -> Draft | Failed:
    """A pod as the binder expects it; it fails if the pod cannot be made so.

    Args:
        pod: A new pod of our scheduler; it is left as it is.
        rules: The settings.
        suffix: Makes the random part of the names of its maps.
    """
    draft, asks = Draft(pod), asks_for_share(annotations_of(pod))
    if asks:
        failure = _prepare_share(draft, rules, suffix)
        if failure is not None:
            return failure
    if rules.block_visible_devices or (asks and rules.limits_memory):
        deviceaccess.prepare(draft)
    return draft


def _name_container(draft: Draft) -> None:
    """Names the container that has the share by default, as `gpu-fraction-container-name`.

    Another webhook may put a container before it; the share stays where its author put it.
    """
    named, found = named_container(draft.pod), container_of(draft.pod, strict=True)
    if named is None and annotation(draft.pod, CONTAINER_NAME) is None and not isinstance(found, Failed):
        draft.annotate(CONTAINER_NAME, str(found[1]["name"]))


def _prepare_share(draft: Draft, rules: Rules, suffix: Callable[[], str]) -> Failed | None:
    if rules.shares_by_maps or rules.shares_by_annotations:
        _name_container(draft)
    if rules.shares_by_maps:
        failure = gpusharing.prepare(draft, rules, suffix)
        if failure is not None:
            return failure
    if rules.shares_by_annotations:
        failure = nvfractions.prepare(draft)
        if failure is not None:
            return failure
    if rules.limits_memory:
        failure = memorylimit.prepare(draft, rules)
        if failure is not None:
            return failure
    if rules.unmet_limit is not None:
        until = (
            "refuses this pod (DependencyNotMet)" if rules.demands_limit else "sets no limit of GPU memory"
        )
        draft.warnings.append(f"{rules.unmet_limit}; until then the binder {until}")
    if rules.runtime_class_name and not rules.nri:
        draft.set_runtime_class(rules.runtime_class_name)
    return None
