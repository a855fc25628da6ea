"""What the binder tells of its plugins, and what its webhook makes of that."""

from collections.abc import Mapping

import pytest

from controller.planning import plan
from controller.plugins.shape import Shape, differences, read, shape_of, show
from controller.runtime.metrics import Metrics
from controller.settings import load


def shape(**plugins: str) -> Shape:
    """The shape by settings such as gpumemorylimit__enabled="true"."""
    return shape_of(plan(load([], variables(plugins))))


def variables(plugins: Mapping[str, str]) -> dict[str, str]:
    return {f"BINDER_PLUGINS__{name.upper()}": value for name, value in plugins.items()}


def told(**plugins: str) -> Shape | None:
    """The same by way of metrics."""
    metrics = Metrics()
    show(metrics.registry, plan(load([], variables(plugins))))
    return read(metrics.render()[0].decode())


@pytest.mark.parametrize(
    "plugins",
    [
        {},
        {"gpumemorylimit__enabled": "true"},
        {"gpumemorylimit": '{"enabled":true,"arguments":{"variable":"GPU_MEMORY_LIMIT"}}'},
        {"gpusharing__arguments": '{"cdiEnabled":"true","nriPluginEnabled":"t"}'},
        {"gpusharing__enabled": "false", "nvfractions__enabled": "true"},
        {"gpusharing__enabled": "false"},
        dict.fromkeys(("volumebinding", "dynamicresources", "gpusharing"), '{"enabled":false}'),
    ],
    ids=str,
)
def test_what_is_told_is_what_is_heard(plugins: dict[str, str]) -> None:
    assert told(**plugins) == shape(**plugins)


def test_what_shapes_a_pod() -> None:
    assert shape(gpumemorylimit__enabled="true") == {
        "gpusharing": {"nriPluginEnabled": "false"},
        "gpumemorylimit": {
            "variable": "CUDA_DEVICE_MEMORY_LIMIT",
            "failurePolicy": "Fail",
            "needs": "met",
        },
    }


def test_another_binder_tells_nothing() -> None:
    assert read(Metrics().render()[0].decode()) is None
    assert read("") is None
    assert read("<html>") is None


def test_what_nobody_understands_is_no_shape() -> None:
    with pytest.raises(ValueError):  # noqa: PT011 -- the parser's own words
        read('kai_binder_plugin_enabled{plugin="gpusharing} 1\n')


def test_what_does_not_shape_a_pod_makes_no_difference() -> None:
    here = shape(volumebinding__enabled="false", gpusharing__priority="120")
    assert differences(here, shape()) == []
    assert differences(shape(), shape(gpusharing__arguments='{"cdiEnabled":"true"}')) == []


def test_differences_say_where_what_is_on() -> None:
    limited = shape(gpumemorylimit__enabled="true")
    assert differences(limited, shape()) == ["gpumemorylimit is on in the webhook and off in the binder"]
    assert differences(shape(), limited) == ["gpumemorylimit is on in the binder and off in the webhook"]
    other = shape(gpusharing__enabled="false", nvfractions__enabled="true")
    assert differences(shape(), other) == [
        "gpusharing is on in the webhook and off in the binder",
        "nvfractions is on in the binder and off in the webhook",
    ]


def test_differences_of_arguments_name_both_values() -> None:
    variable = '{"enabled":true,"arguments":{"variable":"GPU_MEMORY_LIMIT"}}'
    nri = '{"cdiEnabled":"false","nriPluginEnabled":"true"}'
    here = shape(gpumemorylimit=variable, gpusharing__arguments=nri)
    assert differences(here, shape(gpumemorylimit__enabled="true")) == [
        "gpusharing has nriPluginEnabled=true in the webhook and nriPluginEnabled=false in the binder",
        "gpumemorylimit has variable=GPU_MEMORY_LIMIT in the webhook and "
        "variable=CUDA_DEVICE_MEMORY_LIMIT in the binder",
    ]


def test_a_difference_in_what_is_done_without_a_limit_is_named() -> None:
    here = shape(gpumemorylimit__enabled="true")
    assert differences(here, shape(gpumemorylimit='{"enabled":true,"failurePolicy":"Ignore"}')) == [
        "gpumemorylimit has failurePolicy=Fail in the webhook and failurePolicy=Ignore in the binder"
    ]


def test_an_order_in_which_a_need_is_not_met_is_a_difference() -> None:
    """Nothing else of the order is: it does not change how a pod looks."""
    first = shape(gpumemorylimit='{"enabled":true,"priority":1000}')
    assert differences(first, shape(gpumemorylimit__enabled="true")) == [
        "what gpumemorylimit needs is unmet in the webhook and met in the binder"
    ]
    assert (
        differences(
            shape(gpumemorylimit='{"enabled":true,"priority":1}'), shape(gpumemorylimit__enabled="true")
        )
        == []
    )


def test_a_need_that_is_off_in_one_of_both_is_told_once() -> None:
    here, off = {"gpumemorylimit__enabled": "true"}, {"gpusharing__enabled": "false"}
    assert differences(shape(**here), shape(**here, **off)) == [
        "gpusharing is on in the webhook and off in the binder"
    ]
