"""What nvfractions tells the node, and what gpusharing tells it of a request of KAI v0.18."""

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import cast

import anyio
import pytest
from msgspec.structs import replace

from controller.kai.outcome import Failed, Ready
from controller.kai.request import BindRequest, ComputeMode
from controller.plugins import gpusharing as sharing
from controller.plugins.base import BindContext, Prepared
from controller.plugins.nvfractions import Arguments, NvFractions
from controller.runtime.changes import Changes
from controller.runtime.client import Client, Object

KEY = "nvidia.com/container.container-0."


def waiting(_what: str) -> AbstractAsyncContextManager[None]:
    return nullcontext()


def context(
    *,
    label: str | None = "2000",
    portion: str = "0.50",
    compute: str | None = None,
    kind: str = "Fraction",
    **annotations: str,
) -> BindContext:
    """A bind of a pod with these annotations to a node whose label says so many MiB."""
    request = BindRequest(
        namespace="team",
        name="p",
        uid="2",
        owner_uid="1",
        pod_name="p",
        node_name="n",
        resource_type=kind,
        gpu_portion=portion,
        gpu_groups=("g", "h"),
        compute_modes=(ComputeMode.SM_SHARING, ComputeMode.SM_SHARING),
        compute_portion=compute,
    )
    pod: Object = {
        "metadata": {"namespace": "team", "name": "p", "uid": "1", "annotations": annotations},
        "spec": {"containers": [{"name": "container-0"}, {"name": "container-1"}]},
    }
    labels = {} if label is None else {"nvidia.com/gpu.memory": label}
    node: Object = {"metadata": {"name": "n", "labels": labels}}
    return BindContext(request=request, pod=pod, node=node, waiting=waiting, changes=cast(Changes, None))


def plugin(cdi: str = "false") -> NvFractions:
    return NvFractions(cast(Client, None), Arguments.model_validate({"cdiEnabled": cdi}))


def written(given: BindContext, *, cdi: str = "false", gpus: tuple[str, ...] = ("0", "1")) -> dict[str, str]:
    """All annotations that travel with the Binding."""
    prepared = anyio.run(plugin(cdi).prepare, given)
    assert isinstance(prepared, Prepared), prepared
    outcome = anyio.run(plugin(cdi).pre_bind, replace(given, found=prepared.found, gpu_ids=gpus))
    assert isinstance(outcome, Ready)
    return {**prepared.annotations, **outcome.annotations}


def refusal(given: BindContext) -> Failed:
    failure = anyio.run(plugin().prepare, given)
    assert isinstance(failure, Failed), failure
    return failure


def test_a_share_of_two_devices() -> None:
    """U-6."""
    assert written(context()) == {f"{KEY}gpu-memory.request": "1000Mi", f"{KEY}gpus.devices": "0,1"}


def test_devices_by_cdi() -> None:
    """U-6."""
    prefix = "k8s.device-plugin.nvidia.com/gpu="
    assert written(context(), cdi="true")[f"{KEY}gpus.devices"] == f"{prefix}0,{prefix}1"


def test_a_limit_as_a_portion_of_the_card() -> None:
    """U-6, N-53."""
    source = "kai.scheduler/container.container-0.gpu-memory.portion.limit"
    found = written(context(**{source: "0.8"}))
    assert found[f"{KEY}gpu-memory.limit"] == "1600Mi"
    assert source not in found


def test_only_shares_concern_it() -> None:
    """U-6."""
    assert not plugin().concerns(context(kind="Regular"))
    assert plugin().concerns(context())


@pytest.mark.parametrize(
    ("label", "portion", "request_"),
    [
        ("8192", "0.50", "4Gi"),
        ("15360", "0.50", "7680Mi"),
        ("15109", "0.07", "1057Mi"),
        ("2097152", "1.00", "2Mi"),  # bytes
        ("1047552", "1.00", "1023Gi"),
    ],
)
def test_memory_is_a_canonical_quantity(label: str, portion: str, request_: str) -> None:
    """N-43."""
    assert written(context(label=label, portion=portion))[f"{KEY}gpu-memory.request"] == request_


def test_memory_is_exact_where_the_pod_is_exact() -> None:
    assert (
        written(context(label="15360", portion="0.27", **{"gpu-memory": "4096"}))[f"{KEY}gpu-memory.request"]
        == "4Gi"
    )
    third = written(context(label="15360", portion="0.33", **{"gpu-fraction": "0.333"}))
    assert third[f"{KEY}gpu-memory.request"] == "5114Mi"


def test_what_the_pod_says_stays() -> None:
    """N-43, N-53; the devices are the binder's alone to name."""
    given = {f"{KEY}gpu-memory.request": "1000Mi", f"{KEY}gpu-memory.limit": "1Gi", f"{KEY}gpus.devices": "9"}
    assert written(context(**given)) == {f"{KEY}gpus.devices": "0,1"}


@pytest.mark.parametrize(
    ("text", "portion"),
    [("0.125", "0.125"), ("0.3333333333333333", "0.3333333333333333"), ("1", "1"), ("1.5", "1")],
)
def test_the_compute_portion(text: str, portion: str) -> None:
    """N-55, U-18: at most the whole."""
    assert written(context(compute=text))[f"{KEY}gpu-compute.portion"] == portion


@pytest.mark.parametrize("text", [None, "", "0", "0.0", "-1", "half", "NaN", "1e3", "\u0660.\u0665"])
def test_a_compute_portion_that_is_none(text: str | None) -> None:
    assert f"{KEY}gpu-compute.portion" not in written(context(compute=text))


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        (None, "MemoryUnknown"),
        ("0", "InvalidNodeMemory"),
        ("8000Mi", "InvalidNodeMemory"),
        ("-1", "InvalidNodeMemory"),
    ],
)
def test_a_card_of_unknown_memory_is_refused(label: str | None, reason: str) -> None:
    """N-44 as decided."""
    failure = refusal(context(label=label))
    assert failure.reason == reason
    assert "node n" in failure.message


@pytest.mark.parametrize("text", ["0", "1.1", "-0.5", "0,5", "50%", "NaN", "", " 0.5", "1e-1"])
def test_a_limit_that_is_no_portion_is_named(text: str) -> None:
    source = "kai.scheduler/container.container-0.gpu-memory.portion.limit"
    failure = refusal(context(**{source: text}))
    assert (failure.reason, failure.retry) == ("InvalidGPUConfig", False)
    assert f"annotation {source} of pod team/p is {text!r}" in failure.message


def test_six_decimals_are_taken() -> None:
    source = "kai.scheduler/container.container-0.gpu-memory.portion.limit"
    assert written(context(label="1000000", **{source: "0.512345"}))[f"{KEY}gpu-memory.limit"] == "512345Mi"


def test_a_limit_below_what_was_granted_is_refused() -> None:
    source = "kai.scheduler/container.container-0.gpu-memory.portion.limit"
    for limit in ({source: "0.4"}, {f"{KEY}gpu-memory.limit": "800Mi"}):
        failure = refusal(context(**{"gpu-fraction": "0.5", **limit}))
        assert failure.message == (
            "container container-0 of pod team/p may use at most 800Mi of GPU memory, "
            "less than the 1000Mi that it was granted"
        )


@pytest.mark.parametrize("text", ["lots", "0", "-1Gi", ""])
def test_a_limit_that_is_no_amount_is_named(text: str) -> None:
    failure = refusal(context(**{"gpu-fraction": "0.5", f"{KEY}gpu-memory.limit": text}))
    assert failure.reason == "InvalidGPUConfig"


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({"nvidia.com/container.other.gpu-memory.request": "1Gi"}, "has no container 'other'"),
        (
            {"nvidia.com/container.container-0.odd": "1"},
            "annotation nvidia.com/container.container-0.odd is not",
        ),
        (
            {f"{KEY}gpu-memory.request": "1Gi", "nvidia.com/container.container-1.gpu-memory.limit": "1Gi"},
            "for containers container-0 and container-1; only one may share a GPU",
        ),
    ],
)
def test_annotations_that_make_no_sense_are_named(annotations: dict[str, str], words: str) -> None:
    """N-36 to N-40."""
    failure = refusal(context(**annotations))
    assert (failure.reason, failure.retry) == ("InvalidGPUConfig", False)
    assert words in failure.message


def test_another_container_by_its_annotation() -> None:
    """N-40."""
    found = written(context(**{"nvidia.com/container.container-1.gpu-compute.mode": "sm-sharing"}))
    assert found["nvidia.com/container.container-1.gpus.devices"] == "0,1"


def test_a_container_whose_name_fits_no_annotation() -> None:
    """An annotation's name has at most 63 characters behind the slash, a container's has as many."""
    long = context()
    long.pod["spec"]["containers"][0]["name"] = 63 * "c"
    failure = refusal(long)
    assert failure.reason == "InvalidGPUConfig"
    assert "more than the 34 characters" in failure.message
    long.pod["spec"]["containers"][0]["name"] = 34 * "c"
    assert all(len(name.partition("/")[2]) <= 63 for name in written(long))
    # With its share of compute power there is a longer one.
    too_long = context(compute="0.5")
    too_long.pod["spec"]["containers"][0]["name"] = 34 * "c"
    failure = refusal(too_long)
    assert (failure.reason, failure.retry) == ("InvalidGPUConfig", False)
    assert "more than the 33 characters" in failure.message


def test_a_container_whose_name_does_not_fit_the_annotation_of_the_nri() -> None:
    """N-45: told before a GPU is reserved."""
    given = context(**{"runai/shared-gpu-configmap": "p-shared-gpu"})
    given.pod["spec"]["containers"][0]["name"] = 54 * "c"
    arguments = sharing.Arguments.model_validate({"cdiEnabled": "true", "nriPluginEnabled": "true"})
    failure = anyio.run(sharing.GPUSharing(cast(Client, None), arguments).prepare, given)
    assert isinstance(failure, Failed), failure
    assert (failure.reason, failure.retry) == ("InvalidGPUConfig", False)
    assert "more than the 53 characters" in failure.message


@pytest.mark.parametrize(
    ("asked", "fits"), [("1020Mi", True), ("1021Mi", False), ("1e12", False), ("1000M", True)]
)
def test_a_pod_that_says_more_than_it_was_granted_is_refused(asked: str, fits: bool) -> None:
    """Its author may have written that after the scheduler had looked; 0.01 of the card is for rounding."""
    given = context(label="2000", portion="0.50", **{f"{KEY}gpu-memory.request": asked})
    if fits:
        assert f"{KEY}gpu-memory.request" not in written(given)
        return
    failure = refusal(given)
    assert failure.reason == "MemoryExceedsGrant"
    assert failure.retry
    assert (
        f"says '{asked}', more than the request grants: portion 0.50 is at most 1020 MiB" in failure.message
    )


@pytest.mark.parametrize(
    ("label", "asked", "warning"),
    [
        ("2000", "1021Mi", "annotation {name} of pod team/p says '1021Mi', more than the request grants"),
        (None, None, "its memory is not known: node n has no label nvidia.com/gpu.memory"),
    ],
)
def test_gpusharing_warns_of_what_is_the_matter(label: str | None, asked: str | None, warning: str) -> None:
    """N-44: that keeps nobody from running. More than was granted is no memory that is not known."""
    name = f"{KEY}gpu-memory.request"
    annotations = {"runai/shared-gpu-configmap": "p-shared-gpu"} | ({name: asked} if asked else {})
    arguments = sharing.Arguments.model_validate({"cdiEnabled": "false"})
    plugin = sharing.GPUSharing(cast(Client, None), arguments)
    prepared = anyio.run(plugin.prepare, context(label=label, **annotations))
    assert isinstance(prepared, Prepared), prepared
    assert isinstance(prepared.found, sharing._Found)
    assert prepared.found.warning.startswith(warning.format(name=name))


def test_what_a_pod_says_is_believed_where_the_card_is_not_known() -> None:
    """N-44: a node without the label takes pods that bring the annotation."""
    given = context(label=None, **{f"{KEY}gpu-memory.request": "80Gi"})
    assert f"{KEY}gpu-memory.request" not in written(given)
