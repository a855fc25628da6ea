"""What of the plugins shapes a pod, as the binder tells it and its webhook hears it: by metrics.

Called by both composition roots. The webhook prepares a pod for certain plugins, and the binder must run the
same ones: what is compared is which of them are on, the arguments by which a pod looks different, whether the
needs of a plugin are met, and whether a pod that it fails for is refused. All else, such as time-outs, is the
binder's own affair.
"""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from controller.plugins.gpusharing import GPUSharing
from controller.plugins.memorylimit import GPUMemoryLimit
from controller.plugins.nvfractions import NvFractions
from controller.plugins.registry import PlannedPlugin

Shape = Mapping[str, Mapping[str, str]]
"""The plugins that are on and shape pods, by name, each with its arguments that do so."""

ENABLED = "kai_binder_plugin_enabled"
ARGUMENT = "kai_binder_plugin_argument_info"
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    GPUSharing.name: ("nriPluginEnabled",),
    NvFractions.name: (),
    GPUMemoryLimit.name: ("variable",),
}
FAILURE_POLICY, NEEDS = "failurePolicy", "needs"
"""Told as if they were arguments of a plugin of which `_POLICIES` says that they matter."""
_POLICIES = frozenset({GPUMemoryLimit.name})


def shape_of(plugins: Iterable[PlannedPlugin]) -> Shape:
    """The shape by these plugins."""
    shape = {}
    for planned in plugins:
        known = _ARGUMENTS.get(planned.cls.name)
        if known is not None:
            values = planned.arguments.model_dump(by_alias=True, mode="json")
            shape[planned.cls.name] = {name: _text(values[name]) for name in known}
            if planned.cls.name in _POLICIES:
                needs = "met" if planned.unmet is None else "unmet"
                shape[planned.cls.name] |= {FAILURE_POLICY: planned.failure_policy, NEEDS: needs}
    return shape


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def show(registry: CollectorRegistry, plugins: Iterable[PlannedPlugin]) -> None:
    """Adds to the metrics of a process which plugins it runs."""
    enabled = Gauge(ENABLED, "1 for each plugin that runs", ["plugin"], registry=registry)
    argument = Gauge(
        ARGUMENT,
        "1; arguments by which pods look different",
        ["plugin", "argument", "value"],
        registry=registry,
    )
    plan = tuple(plugins)
    for planned in plan:
        enabled.labels(planned.cls.name).set(1)
    for plugin, arguments in shape_of(plan).items():
        for name, value in arguments.items():
            argument.labels(plugin, name, value).set(1)


def read(text: str) -> Shape | None:
    """The shape that the metrics of a process tell; None if they tell of no plugins, as KAI's binder's do.

    Raises:
        ValueError: These are no metrics.
    """
    shape: dict[str, dict[str, str]] = {}
    told = False
    # Only our own lines: a binder of many metrics would take as long to read as many reviews.
    ours = "".join(f"{line}\n" for line in text.splitlines() if ENABLED in line or ARGUMENT in line)
    for family in text_string_to_metric_families(ours):
        told = True
        for sample in family.samples:
            plugin = sample.labels.get("plugin", "")
            if plugin not in _ARGUMENTS or sample.value != 1:
                continue
            arguments = shape.setdefault(plugin, {})
            if family.name == ARGUMENT:
                arguments[sample.labels.get("argument", "")] = sample.labels.get("value", "")
    return shape if told else None


def differences(here: Shape, binder: Shape) -> list[str]:
    """What the webhook has otherwise than the binder, a sentence for each plugin; empty if they agree."""
    found = []
    # Where one runs other plugins, that is why a need is met in one place only, and enough to tell.
    policies = (FAILURE_POLICY, NEEDS) if here.keys() == binder.keys() else (FAILURE_POLICY,)
    for plugin, known in _ARGUMENTS.items():
        if (plugin in here) != (plugin in binder):
            on, off = ("webhook", "binder") if plugin in here else ("binder", "webhook")
            found.append(f"{plugin} is on in the {on} and off in the {off}")
        elif plugin in here:
            names = (*known, *(policies if plugin in _POLICIES else ()))
            pairs = ((name, here[plugin].get(name), binder[plugin].get(name)) for name in names)
            found += [_difference(plugin, *pair) for pair in pairs if pair[1] != pair[2]]
    return found


def _difference(plugin: str, name: str, ours: str | None, theirs: str | None) -> str:
    if name == NEEDS:
        return f"what {plugin} needs is {ours} in the webhook and {theirs} in the binder"
    return f"{plugin} has {name}={ours} in the webhook and {name}={theirs} in the binder"
