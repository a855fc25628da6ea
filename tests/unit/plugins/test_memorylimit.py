"""The GPU memory limit: how much it is, to the MiB, and whether the container would read it.

All expected numbers were worked out by hand from the exact decimals.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import cast

import anyio
import pytest
from msgspec.structs import replace

from controller.kai.request import BindRequest
from controller.plugins.base import BindContext, Failed, Prepared, Ready
from controller.plugins.config import PluginConfig
from controller.plugins.gpusharing import Arguments as SharingArguments
from controller.plugins.gpusharing import GPUSharing
from controller.plugins.memorylimit import Arguments, GPUMemoryLimit, Limit, limit_of
from controller.plugins.registry import BUILT_IN, PluginConfigError, resolve
from controller.runtime.changes import Changes
from controller.runtime.client import Client, Object

VARIABLE = "CUDA_DEVICE_MEMORY_LIMIT"
MAP = "p-a1b2c3d-shared-gpu-0"
NO_CLIENT = cast(Client, None)  # nothing here sends a request
LONG = "0." + "3" * 64


def ascii_of(value: str) -> str:
    """A name for a case that may be very long."""
    return ascii(value[:40])


def entry(variable: str = VARIABLE, config_map: str = MAP, key: str = "") -> Object:
    """A variable as KAI's admission webhook adds it."""
    reference = {"name": config_map, "key": key or variable, "optional": True}
    return {"name": variable, "valueFrom": {"configMapKeyRef": reference}}


def whole(config_map: str = f"{MAP}-evar", **fields: str) -> Object:
    return {"configMapRef": {"name": config_map, "optional": False}, **fields}


def container(name: str = "main", env: tuple[Object, ...] = (), env_from: tuple[Object, ...] = ()) -> Object:
    return {"name": name, "env": list(env), "envFrom": list(env_from)}


def pod(annotations: dict[str, str] | None = None, **spec: object) -> Object:
    metadata = {
        "name": "p",
        "namespace": "team",
        "uid": "1",
        "annotations": {"runai/shared-gpu-configmap": "p-a1b2c3d-shared-gpu", **(annotations or {})},
    }
    return {"metadata": metadata, "spec": {"containers": [container(env=(entry(),))], **spec}}


def context(
    pod_: Object | None = None,
    *,
    portion: str | None = "0.50",
    label: str | None = "15360",
    groups: tuple[str, ...] = ("g",),
    resource_type: str = "Fraction",
) -> BindContext:
    request = BindRequest(
        namespace="team",
        name="p",
        uid="2",
        owner_uid="1",
        pod_name="p",
        node_name="n",
        resource_type=resource_type,
        gpu_portion=portion,
        gpu_groups=groups,
    )
    labels = {} if label is None else {"nvidia.com/gpu.memory": label}
    node: Object = {"metadata": {"name": "n", "labels": labels}}

    def waiting(_what: str) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    return BindContext(
        request=request,
        pod=pod_ or pod(),
        node=node,
        waiting=waiting,
        changes=cast(Changes, None),
    )


def asked(
    memory: str | None = None,
    *,
    fraction: str | None = None,
    portion: str | None = "0.50",
    label: str | None = "15360",
    fallback: int | None = None,
) -> Limit | Failed:
    """The limit for a pod with these annotations on a node with this label."""
    given = {"gpu-memory": memory, "gpu-fraction": fraction}
    annotations = {name: value for name, value in given.items() if value is not None}
    return limit_of(context(pod(annotations), portion=portion, label=label), fallback)


def mib(outcome: Limit | Failed) -> int:
    assert isinstance(outcome, Limit), outcome
    return outcome.mib


def refused(outcome: Limit | Failed, reason: str, *, retry: bool = False) -> str:
    """The message of a failure of this reason."""
    assert isinstance(outcome, Failed), outcome
    assert (outcome.reason, outcome.retry) == (reason, retry)
    return outcome.message


def plugin(**arguments: str) -> GPUMemoryLimit:
    return GPUMemoryLimit(NO_CLIENT, Arguments.model_validate(arguments))


def prepared(given: BindContext, **arguments: str) -> Prepared | Failed:
    return anyio.run(plugin(**arguments).prepare, given)


def handed_over(given: BindContext, **arguments: str) -> Mapping[str, str]:
    """The variables that gpusharing is to deliver."""
    found = prepared(given, **arguments)
    assert isinstance(found, Prepared), found
    return found.container_env


def undelivered(given: BindContext, **arguments: str) -> str:
    """Why the limit would not reach the container."""
    failure = prepared(given, **arguments)
    assert isinstance(failure, Failed), failure
    assert (failure.reason, failure.retry) == ("LimitNotDelivered", False)
    return failure.message


# A share of the card


@pytest.mark.parametrize(
    ("label", "portion", "expected"),
    [
        ("15360", "0.50", 7680),
        ("15360", "0.33", 5068),  # 5068.8
        ("15360", "0.07", 1075),  # 1075.2
        ("46068", "0.50", 23034),
        ("46068", "0.33", 15202),  # 15202.44
        ("46068", "0.07", 3224),  # 3224.76
        ("15109", "0.50", 7554),  # 7554.5
        ("15109", "0.33", 4985),  # 4985.97
        ("15109", "0.07", 1057),  # 1057.63
        ("81559", "0.50", 40779),  # 40779.5
        ("81559", "0.33", 26914),  # 26914.47
        ("81559", "0.07", 5709),  # 5709.13
        ("24258", "0.50", 12129),
        ("24258", "0.33", 8005),  # 8005.14
        ("24258", "0.07", 1698),  # 1698.06
        ("81920", "0.50", 40960),
        ("81920", "0.33", 27033),  # 27033.6
        ("81920", "0.07", 5734),  # 5734.4
        ("24300", "0.29", 7047),  # binary floating point makes 7046.999… of it
        ("100", "0.29", 29),  # likewise 28.999…
        ("15360", "1.00", 15360),
        ("15360", "1", 15360),
        ("15360", "0.01", 153),  # 153.6
        ("15360", "0.5", 7680),
        ("15360", "00.50", 7680),
        ("15360", "0.500000", 7680),
        ("15360", "0.00007", 1),  # 1.0752
        ("1", "1.00", 1),
    ],
)
def test_a_portion_of_the_card_is_rounded_down(label: str, portion: str, expected: int) -> None:
    assert mib(asked(portion=portion, label=label)) == expected


@pytest.mark.parametrize(
    ("fraction", "portion", "label", "expected"),
    [
        ("0.333", "0.33", "15360", 5114),  # 5114.88
        ("0.3333333333333333", "0.33", "15360", 5119),  # 5119.999…
        ("0.5", "0.50", "46068", 23034),
        ("0.07", "0.07", "24258", 1698),
        ("0.001", "0.00", "81920", 81),  # 81.92
        ("0.004", "0.00", "15360", 61),  # 61.44
        ("0.996", "1.00", "15360", 15298),  # 15298.56
        ("0.996", "1", "15360", 15298),
        ("0.335", "0.33", "15360", 5145),  # 5145.6; halves are rounded either way, by the binary digits
        ("0.335", "0.34", "15360", 5145),
        ("0.125", "0.12", "15360", 1920),
        ("0.125", "0.13", "15360", 1920),
        ("1", "1.00", "15360", 15360),
        ("0.50", "0.5", "15360", 7680),
        (LONG, "0.33", "15360", 5119),
        ("0." + "9" * 40, "1.00", "15360", 15359),  # not rounded up to the whole card on the way
        ("0.335" + "0" * 40 + "1", "0.33", "15360", 5068),  # a hair too far from 0.33
    ],
)
def test_the_pods_own_fraction_is_taken_if_the_portion_was_rounded_from_it(
    fraction: str, portion: str, label: str, expected: int
) -> None:
    assert mib(asked(fraction=fraction, portion=portion, label=label)) == expected


@pytest.mark.parametrize(
    ("fraction", "portion", "expected"),
    [
        ("0.9", "0.33", 5068),  # raised after the scheduler looked
        ("0.1", "0.33", 5068),
        ("0.336", "0.33", 5068),
        ("0.324", "0.33", 5068),
        ("0.126", "0.12", 1843),  # 1843.2
        ("1.004", "1.00", 15360),
        ("2", "0.50", 7680),
        ("1e99", "0.50", 7680),
        ("0", "0.50", 7680),
        ("0.333", "0.330", 5068),  # three decimals are not the scheduler's: nothing was rounded
        ("0.333", "0.3330001", 5114),  # 5114.881536
    ],
)
def test_a_fraction_that_does_not_round_to_the_portion_is_not_believed(
    fraction: str, portion: str, expected: int
) -> None:
    limit = asked(fraction=fraction, portion=portion)
    assert mib(limit) == expected
    assert isinstance(limit, Limit)
    assert limit.source == f"{portion} of the card, from the request's portion"


@pytest.mark.parametrize(
    "fraction", [".5", "+0.5", "+.5", "0.", "5e-1", "5E-1", "50e-2", ".05e1", "0.05e+1", "00.5", "5.e-1"]
)
def test_a_fraction_is_read_as_kai_reads_it(fraction: str) -> None:
    # Its webhook takes these (Go's ParseFloat), so such pods arrive here.
    assert mib(asked(fraction=fraction)) == 7680


@pytest.mark.parametrize(
    "fraction",
    [
        *("", " ", "half", "0.5 ", " 0.5", "0.5\n", "0,5", "0_5", "50%", "500m", "1/2", "0x0.8p0", "0x1p-1"),
        *("NaN", "nan", "inf", "-inf", "Infinity", "-0.5", "--0.5", "+-0.5", "0.5.0", ".", "+", "e1", ".e1"),
        *(
            "1e",
            "1e1000",
            "1e-9999",
            "\u0660.\u0665",
            "\uff10.\uff15",
            "0.5\u00b2",
            "0." + "5" * 65,
            "5" * 65,
            "0" * 50_000,
        ),
    ],
    ids=ascii_of,
)
@pytest.mark.parametrize("portion", ["0.50", "0.00"])
def test_a_fraction_that_is_no_number_fails_even_if_the_portion_is_good(fraction: str, portion: str) -> None:
    message = refused(asked(fraction=fraction, portion=portion), "InvalidPortion")
    shown = repr(fraction[:64])[1:-1]
    assert message.startswith(f"annotation gpu-fraction of pod team/p is '{shown}")
    assert message.endswith("; it must be a decimal number such as 0.5")
    assert len(message) < 300


BAD_PORTIONS = (
    *("NaN", "nan", "sNaN", "inf", "-inf", "Infinity", "-0.5", "+0.5", " 0.5 ", "0.5\n", "0_5", "0,5"),
    *(
        "50%",
        "500m",
        "\u0660.\u0665",
        "\uff10.\uff15",
        "0\uff0e5",
        "",
        " ",
        "1e-1",
        "1E-1",
        "5e-1",
        ".5",
        "5.",
        "0.5.0",
        "0x1p-1",
    ),
    *("\u00bd", "0.5\u00b2", "half", "None", "null", "0." + "5" * 65, "5" * 65, "0" * 50_000, "0.5\x00"),
)


@pytest.mark.parametrize("portion", BAD_PORTIONS, ids=ascii_of)
@pytest.mark.parametrize("fraction", [None, "0.5"])
def test_a_portion_that_is_no_decimal_number_fails(portion: str, fraction: str | None) -> None:
    message = refused(asked(portion=portion, fraction=fraction), "InvalidPortion")
    shown = repr(portion[:64])[1:-1]
    assert message.startswith(f"spec.receivedGPU.portion is '{shown}")
    assert message.endswith("; it must be a decimal number such as 0.50")
    assert len(message) < 300


def test_a_portion_that_is_missing() -> None:
    assert refused(asked(portion=None), "InvalidPortion") == (
        "spec.receivedGPU.portion is missing; it must be a decimal number such as 0.50"
    )


@pytest.mark.parametrize("portion", ["0", "0.0", "0.00", "00", "1.01", "1.5", "2", "100", "9" * 64])
@pytest.mark.parametrize("fraction", [None, "0.5", "0"])
def test_a_portion_out_of_range_fails(portion: str, fraction: str | None) -> None:
    message = refused(asked(portion=portion, fraction=fraction), "InvalidPortion")
    assert (
        message == f"spec.receivedGPU.portion is {portion!r}; a share of a GPU is more than 0 and at most 1"
    )


@pytest.mark.parametrize(
    ("fraction", "portion", "label", "share"),
    [
        (None, "0.00006", "15360", "0.00006"),  # 0.9216
        (None, "0.01", "99", "0.01"),  # 0.99
        ("0.00001", "0.00", "81920", "0.00001"),  # 0.8192
        ("1e-999", "0.00", "81920", "1E-999"),
    ],
)
def test_less_than_one_mib_fails(fraction: str | None, portion: str, label: str, share: str) -> None:
    message = refused(asked(fraction=fraction, portion=portion, label=label), "MemoryTooSmall")
    assert message.startswith("the limit for pod team/p on node n is less than 1 MiB: ")
    assert f"{share} of the card" in message
    assert f"{label} MiB" in message


# An amount of memory


@pytest.mark.parametrize(
    ("memory", "portion", "label", "expected"),
    [
        ("4096", "0.27", "15360", 4096),  # not 4147, which 0.27 would give
        ("2000", "0.14", "15360", 2000),
        ("300", "0.00", "81920", 300),
        ("15360", "1.00", "15360", 15360),
        ("1", "0.01", "15360", 1),
        ("345", "0.03", "15360", 345),
        ("04096", "0.27", "15360", 4096),
        ("4096", "0.27", "16106127360", 4096),
    ],
)
def test_memory_that_is_asked_for_is_the_limit(memory: str, portion: str, label: str, expected: int) -> None:
    assert mib(asked(memory, portion=portion, label=label)) == expected


def test_memory_goes_before_a_fraction() -> None:
    assert mib(asked("4096", fraction="0.5", portion="0.50")) == 4096


BAD_MEMORY = (
    *("4Gi", "16Gi", "8000Mi", "2000mb", "4096M", "4096 MiB", "-1", "-4096", "+4096", "1e3", "4096.5"),
    *("4096.0", "", " ", "0", "00", " 4096", "4096 ", "4096\n", "4_096", "4,096", "0x1000", "NaN", "inf"),
    *(
        "\u0664\u0660\u0669\u0666",
        "\uff14\uff10\uff19\uff16",
        "\u00b2",
        "half",
        "9" * 19,
        "9" * 5000,
        "1" * 50_000,
    ),
)


@pytest.mark.parametrize("memory", BAD_MEMORY, ids=ascii_of)
def test_memory_that_is_no_number_of_mib_fails(memory: str) -> None:
    message = refused(asked(memory), "InvalidGPUMemory")
    shown = repr(memory[:64])[1:-1]
    assert message.startswith(f"annotation gpu-memory of pod team/p is '{shown}")
    assert message.endswith("; it must be a whole number of MiB, such as 4096")
    assert len(message) < 300


@pytest.mark.parametrize("memory", ["15361", "20000", "1048576", "9" * 18])
def test_more_memory_than_the_card_has_fails(memory: str) -> None:
    message = refused(asked(memory), "MemoryExceedsCard")
    assert message == (
        f"annotation gpu-memory of pod team/p asks for {memory} MiB, more than a GPU of node n has: "
        "the card has 15360 MiB by its label"
    )


@pytest.mark.parametrize(
    ("memory", "portion", "label", "granted"),
    [
        ("15360", "0.10", "15360", 1690),  # 0.11 x 15360 = 1689.6
        ("1691", "0.10", "15360", 1690),
        ("8000", "0.50", "15360", 7834),  # 7833.6
        ("155", "0.00", "15360", 154),  # 153.6
        ("77", "0.75", "100", 76),
        ("4096", "0.1", "16106127360", 1690),
        ("15360", "0.98", "15360", 15207),  # 15206.4
    ],
)
def test_more_memory_than_was_granted_is_refused_and_tried_again(
    memory: str, portion: str, label: str, granted: int
) -> None:
    """F-30: the annotation can be changed after the scheduler has looked at it."""
    message = refused(asked(memory, portion=portion, label=label), "MemoryExceedsGrant", retry=True)
    card = (
        "15360 MiB by its label (16106127360 bytes)"
        if label == "16106127360"
        else f"{label} MiB by its label"
    )
    assert message == (
        f"annotation gpu-memory of pod team/p asks for {memory} MiB, more than the request grants: "
        f"portion {portion} is at most {granted} MiB, with what rounding may have taken off; "
        f"the card has {card}"
    )
    assert mib(asked(str(granted), portion=portion, label=label)) == granted


@pytest.mark.parametrize("label", [100, 8138, 15109, 15360, 24258, 46068, 81559, 81920, 183359])
def test_what_the_scheduler_grants_is_never_refused(label: int) -> None:
    """F-30. It takes the card in whole hundreds, and writes two decimals of what is asked for."""
    card = label // 100 * 100
    for memory in range(1, card + 1, max(1, card // 701)):
        portion = f"{memory / card:.2f}"
        assert mib(asked(str(memory), portion=portion, label=str(label))) == memory


@pytest.mark.parametrize("portion", ["NaN", "", "half", None])
def test_memory_is_not_believed_without_a_portion(portion: str | None) -> None:
    """F-30."""
    refused(asked("4096", portion=portion), "InvalidPortion")


# The card


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("1048575", 1048575),
        ("1048576", 1),  # from here on it is bytes
        ("2097151", 1),
        ("2097152", 2),
        ("17179869184", 16384),
        ("16106127360", 15360),
        ("16106127361", 15360),
        ("999999999999999999", 953674316406),
    ],
)
def test_a_large_label_is_in_bytes(label: str, expected: int) -> None:
    limit = asked(portion="1.00", label=label)
    assert mib(limit) == expected
    assert isinstance(limit, Limit)
    unit = "" if label == "1048575" else f" ({label} bytes)"
    assert limit.card == f"the card has {expected} MiB by its label{unit}"


@pytest.mark.parametrize(
    "label",
    [
        *("", " ", "0", "00", "-1", "-15360", "+15360", "8000Mi", "16Gi", "15360.0", "15360.5", "1e4"),
        *("15_360", "15,360", " 15360", "15360 ", "15360\n", "0x3c00", "NaN", "inf", "N/A", "unknown"),
        *(
            "\u0661\u0665\u0663\u0666\u0660",
            "\uff11\uff15\uff13\uff16\uff10",
            "9" * 19,
            "9" * 63,
            "[N/A]",
            "15360m",
        ),
    ],
)
@pytest.mark.parametrize("memory", [None, "4096"])
@pytest.mark.parametrize("fallback", [None, 15360])
def test_a_label_that_is_no_number_fails(label: str, memory: str | None, fallback: int | None) -> None:
    # The fallback is for nodes without the label: one that is there and wrong is somebody's mistake. Somebody
    # may mend it, so the request is tried again.
    message = refused(asked(memory, label=label, fallback=fallback), "InvalidNodeMemory", retry=True)
    assert message == (
        f"label nvidia.com/gpu.memory of node n is {label!r}; it must be a whole number of MiB"
    )


@pytest.mark.parametrize("memory", [None, "4096"])
def test_a_node_without_the_label_fails(memory: str | None) -> None:
    message = refused(asked(memory, label=None), "MemoryUnknown", retry=True)
    assert message == (
        "node n has no label nvidia.com/gpu.memory, and the argument fallbackMemoryMiB is not set"
    )


def test_a_node_without_any_label_fails() -> None:
    given = context()
    given.node["metadata"]["labels"] = None
    refused(limit_of(given, None), "MemoryUnknown", retry=True)


def test_the_fallback_is_the_card_of_a_node_without_the_label() -> None:
    assert mib(asked(label=None, fallback=124610)) == 62305
    assert mib(asked("4096", label=None, fallback=124610)) == 4096
    message = refused(asked("124611", label=None, fallback=124610), "MemoryExceedsCard")
    assert "asks for 124611 MiB" in message
    assert message.endswith("the card is taken to have 124610 MiB, by fallbackMemoryMiB")


def test_the_label_goes_before_the_fallback() -> None:
    assert mib(asked(label="15360", fallback=124610)) == 7680


def test_several_devices_have_the_limit_each() -> None:
    two = context(pod({"gpu-memory": "2000", "gpu-fraction-num-devices": "2"}), groups=("g", "h"))
    assert mib(limit_of(two, None)) == 2000
    half = context(pod({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}), groups=("g", "h"))
    assert mib(limit_of(half, None)) == 7680
    excess = context(pod({"gpu-memory": "15361", "gpu-fraction-num-devices": "2"}), groups=("g", "h"))
    refused(limit_of(excess, None), "MemoryExceedsCard")


# What is said of it


def test_the_message_has_the_limit_and_where_it_comes_from() -> None:
    assert str(asked("4096")) == "4096 MiB, from gpu-memory; the card has 15360 MiB by its label"
    assert str(asked(fraction="0.333", portion="0.33")) == (
        "5114 MiB, 0.333 of the card, from gpu-fraction; the card has 15360 MiB by its label"
    )
    assert str(asked(label="17179869184")) == (
        "8192 MiB, 0.50 of the card, from the request's portion; "
        "the card has 16384 MiB by its label (17179869184 bytes)"
    )
    assert str(asked(label=None, fallback=124610)) == (
        "62305 MiB, 0.50 of the card, from the request's portion; "
        "the card is taken to have 124610 MiB, by fallbackMemoryMiB"
    )


@pytest.mark.parametrize(("memory", "warned"), [("1", True), ("344", True), ("345", True), ("346", False)])
def test_a_limit_at_which_cuda_does_not_start_is_warned_of(memory: str, warned: bool) -> None:
    warning = ". Warning: CUDA does not start with 345 MiB or less"
    assert str(asked(memory)).endswith(warning) is warned
    assert mib(asked(memory)) == int(memory)


# Delivery


def test_the_limit_is_handed_to_gpusharing_and_told() -> None:
    given = context(pod({"gpu-fraction": "0.5"}))
    assert handed_over(given) == {VARIABLE: "7680m"}
    found = prepared(given)
    assert isinstance(found, Prepared)
    merged = replace(given, container_env=found.container_env, found=found.found)
    assert anyio.run(plugin().pre_bind, merged) == Ready(
        "7680 MiB, 0.5 of the card, from gpu-fraction; the card has 15360 MiB by its label"
    )


def test_it_is_not_called_delivered_unless_it_was_handed_over() -> None:
    outcome = anyio.run(plugin().pre_bind, context())
    assert isinstance(outcome, Failed)
    assert outcome.reason == "LimitNotDelivered"
    assert VARIABLE in outcome.message


def test_a_limit_that_failed_is_not_handed_over() -> None:
    for given in (context(label=None), context(portion="0"), context(pod({"gpu-memory": "4Gi"}))):
        assert isinstance(prepared(given), Failed)


@pytest.mark.parametrize(
    ("memory", "format_", "expected"),
    [
        ("4096", "mebibytes", "4096m"),
        ("4096", "bytes", "4294967296"),
        ("1", "mebibytes", "1m"),
        ("1", "bytes", "1048576"),
        ("15360", "bytes", "16106127360"),
    ],
)
def test_formats(memory: str, format_: str, expected: str) -> None:
    given = context(pod({"gpu-memory": memory}), portion="1.00")
    assert handed_over(given, format=format_) == {VARIABLE: expected}


def test_another_variable() -> None:
    main = container(env=(entry("GPU_MEMORY_LIMIT"),))
    given = context(pod(containers=[main]))
    assert handed_over(given, variable="GPU_MEMORY_LIMIT", format="bytes") == {
        "GPU_MEMORY_LIMIT": "8053063680"
    }


def test_a_variable_that_the_webhook_does_not_know_goes_through_the_map_that_is_read_whole() -> None:
    main = container(env=(entry(),), env_from=(whole(),))
    given = context(pod(containers=[main]))
    assert handed_over(given, variable="GPU_MEMORY_LIMIT") == {"GPU_MEMORY_LIMIT": "7680m"}


def test_a_variable_with_another_key_is_delivered() -> None:
    given = context(pod(containers=[container(env=(entry(key="limit"),))]))
    assert handed_over(given) == {VARIABLE: "7680m"}


LITERALS: tuple[Object, ...] = (
    {"name": VARIABLE},
    {"name": VARIABLE, "value": ""},
    {"name": VARIABLE, "value": "0m"},
    {"name": VARIABLE, "value": "1m", "valueFrom": None},
    {"name": VARIABLE, "valueFrom": {"secretKeyRef": {"name": MAP, "key": VARIABLE}}},
    {"name": VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    {"name": VARIABLE, "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "p", "key": VARIABLE}}},
)


@pytest.mark.parametrize("literal", LITERALS)
@pytest.mark.parametrize("before", [(), (entry(),)], ids=["alone", "after"])
def test_a_container_that_sets_the_variable_itself(literal: Object, before: tuple[Object, ...]) -> None:
    # Of several entries of one name the kubelet takes the last.
    main = container(env=(*before, literal), env_from=(whole(),))
    assert undelivered(context(pod(containers=[main]))) == (
        f"container main of pod team/p sets {VARIABLE} itself, so a limit would not reach it"
    )


@pytest.mark.parametrize(
    "one",
    [
        {"name": f"{VARIABLE}_0", "value": "100g"},
        {"name": f"{VARIABLE}_12", "valueFrom": {"configMapKeyRef": {"name": MAP, "key": "x"}}},
    ],
)
@pytest.mark.parametrize("by", ["entry", "whole"])
def test_a_limit_for_one_device_goes_before_ours(one: Object, by: str) -> None:
    # HAMi-core takes CUDA_DEVICE_MEMORY_LIMIT_0 for the first device, and ours only where there is none.
    main = container(env=(entry(), one)) if by == "entry" else container(env=(one,), env_from=(whole(),))
    assert undelivered(context(pod(containers=[main]))) == (
        f"container main of pod team/p sets {one['name']} itself, which goes before {VARIABLE}"
    )


@pytest.mark.parametrize("name", [f"{VARIABLE}_", f"{VARIABLE}_A", f"{VARIABLE}0", f"MY_{VARIABLE}_0"])
def test_a_variable_with_a_like_name_is_no_matter(name: str) -> None:
    given = context(pod(containers=[container(env=(entry(), {"name": name, "value": "1"}))]))
    assert handed_over(given)


def test_of_several_entries_the_last_one_counts() -> None:
    main = container(env=({"name": VARIABLE, "value": "0m"}, entry()))
    given = context(pod(containers=[main]))
    assert handed_over(given) == {VARIABLE: "7680m"}


@pytest.mark.parametrize("other", ["mine", f"{MAP}-evar", "p-a1b2c3d-shared-gpu", "p-a1b2c3d-shared-gpu-1"])
def test_a_container_that_takes_the_variable_from_another_config_map(other: str) -> None:
    main = container(env=(entry(config_map=other),), env_from=(whole(),))
    assert undelivered(context(pod(containers=[main]))) == (
        f"container main of pod team/p takes {VARIABLE} from ConfigMap {other}, not from {MAP}"
    )


@pytest.mark.parametrize(
    "key", ["NVIDIA_VISIBLE_DEVICES", "RUNAI_NUM_OF_GPUS", "GPU_PORTION", "RUNAI-VISIBLE-DEVICES"]
)
def test_a_container_that_takes_the_variable_from_the_key_of_another(key: str) -> None:
    """F-31: the last of these keys is kept up where a map has it, and then holds devices."""
    main = container(env=(entry(key=key),), env_from=(whole(),))
    assert undelivered(context(pod(containers=[main]))) == (
        f"container main of pod team/p takes {VARIABLE} from key {key} of ConfigMap {MAP}, "
        "which holds something else"
    )


@pytest.mark.parametrize(
    "env_from",
    [
        (),
        (whole("mine"),),
        (whole(MAP),),
        (whole(prefix="X_"),),
        ({"secretRef": {"name": f"{MAP}-evar"}},),
    ],
    ids=["nothing", "another map", "the other map", "with a prefix", "a secret"],
)
def test_a_container_that_reads_the_variable_nowhere(env_from: tuple[Object, ...]) -> None:
    main = container(env=({"name": "OTHER", "value": "1"},), env_from=env_from)
    assert undelivered(context(pod(containers=[main]))) == (
        f"container main of pod team/p takes {VARIABLE} from no ConfigMap and does not read {MAP}-evar "
        "whole, so a limit would not reach it"
    )


def test_a_container_without_any_environment() -> None:
    assert "would not reach it" in undelivered(context(pod(containers=[{"name": "main"}])))


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (whole("mine"), "ConfigMap mine"),
        (whole("mine", prefix=""), "ConfigMap mine"),
        (whole("mine", prefix="CUDA_"), "ConfigMap mine"),
        (whole(MAP), f"ConfigMap {MAP}"),
        ({"secretRef": {"name": "hidden"}}, "Secret hidden"),
    ],
)
def test_what_is_read_after_the_map_could_replace_the_limit(source: Object, name: str) -> None:
    # Of several sources with the same key the kubelet takes the last.
    main = container(env_from=(whole(), source))
    assert undelivered(context(pod(containers=[main]))) == (
        f"container main of pod team/p reads {name} after {MAP}-evar, which could replace {VARIABLE}; "
        f"read {MAP}-evar last"
    )


COVERED = {f"{VARIABLE}_0": "7680m", "CUDA_DISABLE_CONTROL": "false", "CUDA_REDIRECT": ""}
"""What stands beside the limit if somebody else could have set it before."""


@pytest.mark.parametrize(
    ("env_from", "covers"),
    [
        ((whole(),), {}),
        ((whole("mine"), whole()), COVERED),
        ((whole(), whole("mine", prefix="MY_")), {}),
        ((whole(), whole("mine"), whole()), COVERED),
        ((whole(), whole(prefix="X_")), {}),
        ((whole(prefix=""),), {}),
        (({"secretRef": {"name": "hidden"}}, whole()), COVERED),
        ((whole("mine", prefix="CUDA_DEVICE"), whole()), {f"{VARIABLE}_0": "7680m"}),
        ((whole("mine", prefix="CUDA_R"), whole()), {"CUDA_REDIRECT": ""}),
    ],
)
@pytest.mark.parametrize("env", [(), (entry(),)], ids=["whole", "entry"])
def test_what_cannot_replace_the_limit_is_no_matter(
    env: tuple[Object, ...], env_from: tuple[Object, ...], covers: dict[str, str]
) -> None:
    """F-31: what somebody else says before our map is read is replaced by it, name by name."""
    given = context(pod(containers=[container(env=env, env_from=env_from)]))
    assert handed_over(given) == {VARIABLE: "7680m", **covers}


def test_each_device_is_covered() -> None:
    main = container(env=(entry(),), env_from=(whole("mine"), whole()))
    over = handed_over(context(pod({"gpu-memory": "2000"}, containers=[main]), groups=("g", "h")))
    assert (over[f"{VARIABLE}_0"], over[f"{VARIABLE}_1"], f"{VARIABLE}_2" in over) == (
        "2000m",
        "2000m",
        False,
    )


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (whole("mine"), "ConfigMap mine"),
        (whole("mine", prefix=VARIABLE), "ConfigMap mine"),
        (whole("mine", prefix=f"{VARIABLE}_"), "ConfigMap mine"),
        ({"secretRef": {"name": "hidden", "optional": True}}, "Secret hidden"),
    ],
)
def test_what_is_read_after_the_map_could_set_a_limit_of_one_device(source: Object, name: str) -> None:
    """F-31: an entry for the limit is no help, since the limiter looks for that of the device first."""
    main = container(env=(entry("NVIDIA_VISIBLE_DEVICES"), entry()), env_from=(whole(), source))
    assert undelivered(context(pod(containers=[main]))) == (
        f"container main of pod team/p reads {name} after {MAP}-evar, which could set {VARIABLE}_0; "
        f"read {MAP}-evar last"
    )
    alone = container(env=(entry("NVIDIA_VISIBLE_DEVICES"), entry()), env_from=(source,))
    assert undelivered(context(pod(containers=[alone]))) == (
        f"container main of pod team/p reads {name}, which could set {VARIABLE}_0, "
        f"and does not read {MAP}-evar after it"
    )


@pytest.mark.parametrize("prefix", [f"{VARIABLE}_0", f"{VARIABLE}_1", "CUDA_DISABLE_CONTROL", "cuda_"])
def test_a_prefix_with_which_nothing_harmful_can_be_set(prefix: str) -> None:
    main = container(env=(entry(),), env_from=(whole(), whole("mine", prefix=prefix)))
    assert handed_over(context(pod(containers=[main]))) == {VARIABLE: "7680m"}


def test_the_devices_and_the_limit_from_one_key() -> None:
    """F-31: a key can hold one value only."""
    both = (entry("NVIDIA_VISIBLE_DEVICES", key="mine"), entry(key="mine"))
    assert undelivered(context(pod(containers=[container(env=both)]))) == (
        f"container main of pod team/p takes {VARIABLE} from key mine of ConfigMap {MAP}, "
        "which holds something else"
    )


# What undoes a limit that is delivered

DEVICES = "NVIDIA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("set_by", "why"),
    [
        ({"name": DEVICES, "value": "all"}, f"sets {DEVICES} itself to 'all'"),
        ({"name": DEVICES, "value": "0,1"}, f"sets {DEVICES} itself to '0,1'"),
        ({"name": DEVICES, "value": "$(MINE)"}, f"sets {DEVICES} itself to '$(MINE)'"),
        (entry(DEVICES, "mine"), f"takes {DEVICES} from ConfigMap mine, not from {MAP}"),
        (
            {"name": DEVICES, "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            f"sets {DEVICES} itself",
        ),
    ],
)
def test_a_container_that_chooses_its_own_gpus(set_by: Object, why: str) -> None:
    """F-32."""
    main = container(env=(entry(DEVICES), entry(), set_by), env_from=(whole(),))
    assert undelivered(context(pod(containers=[main]))) == (
        f"container main of pod team/p {why}, so that it may use more than its share"
    )


@pytest.mark.parametrize("value", ["void", "none", ""])
def test_a_container_that_wants_no_gpu_is_no_danger(value: str) -> None:
    main = container(env=(entry(), {"name": DEVICES, "value": value}))
    assert handed_over(context(pod(containers=[main])))


def test_what_is_read_after_the_map_could_replace_the_devices() -> None:
    """F-32."""
    main = container(env=(entry(),), env_from=(whole(), whole("mine", prefix="NVIDIA_")))
    assert undelivered(context(pod(containers=[main]))) == (
        f"container main of pod team/p reads ConfigMap mine after {MAP}-evar, which could replace {DEVICES}; "
        f"read {MAP}-evar last, so that it may use more than its share"
    )


@pytest.mark.parametrize(
    ("switch", "told"),
    [
        ({"name": "CUDA_DISABLE_CONTROL", "value": "true"}, "CUDA_DISABLE_CONTROL itself to 'true'"),
        ({"name": "CUDA_DISABLE_CONTROL", "value": "1"}, "CUDA_DISABLE_CONTROL itself to '1'"),
        ({"name": "CUDA_DISABLE_CONTROL", "value": "$(X)"}, "CUDA_DISABLE_CONTROL itself to '$(X)'"),
        (entry("CUDA_DISABLE_CONTROL", "mine"), "CUDA_DISABLE_CONTROL itself"),
        ({"name": "CUDA_REDIRECT", "value": "/lib/x.so"}, "CUDA_REDIRECT itself to '/lib/x.so'"),
    ],
)
def test_a_container_that_switches_the_limiter_off(switch: Object, told: str) -> None:
    """F-32."""
    for env in ((entry(), switch), (entry(), {"name": switch["name"], "value": ""}, switch)):
        assert undelivered(context(pod(containers=[container(env=env)]))) == (
            f"container main of pod team/p sets {told}, which switches the limiter off"
        )


@pytest.mark.parametrize("value", ["false", "0", "f", "False", ""])
def test_a_switch_that_is_off_already(value: str) -> None:
    env = (
        {"name": "CUDA_DISABLE_CONTROL", "value": "true"},
        {"name": "CUDA_DISABLE_CONTROL", "value": value},
    )
    assert handed_over(context(pod(containers=[container(env=(entry(), *env))]))) == {VARIABLE: "7680m"}


# Other containers of the pod

MAIN = container(env=(entry(DEVICES), entry()), env_from=(whole(),))


@pytest.mark.parametrize("where", ["containers", "initContainers"])
@pytest.mark.parametrize(
    ("env", "env_from", "told"),
    [
        (
            ({"name": DEVICES, "value": "all"},),
            (),
            f"sets {DEVICES} itself to 'all', so that it may use more than its share",
        ),
        (
            ({"name": DEVICES, "value": "all"}, entry()),
            (),
            f"sets {DEVICES} itself to 'all', so that it may use more than its share",
        ),
        (
            (entry(DEVICES),),
            (),
            f"takes {VARIABLE} from no ConfigMap and does not read {MAP}-evar whole, "
            "so a limit would not reach it",
        ),
        (
            (entry(DEVICES), {"name": VARIABLE, "value": "0m"}),
            (),
            f"sets {VARIABLE} itself, so a limit would not reach it",
        ),
        (
            (entry(DEVICES), entry(key="other")),
            (),
            f"takes {VARIABLE} from key other of ConfigMap {MAP}, which holds something else",
        ),
        (
            (entry(DEVICES),),
            (whole(),),
            f"takes {VARIABLE} from {MAP}-evar, while container main takes it elsewhere",
        ),
        (
            (entry(DEVICES), entry(), {"name": "CUDA_DISABLE_CONTROL", "value": "true"}),
            (),
            "sets CUDA_DISABLE_CONTROL itself to 'true', which switches the limiter off",
        ),
    ],
)
def test_another_container_that_sees_the_gpu_without_the_limit(
    where: str, env: tuple[Object, ...], env_from: tuple[Object, ...], told: str
) -> None:
    """F-31, F-32."""
    other = container("other", env, env_from)
    beside = {"containers": [MAIN, other], "initContainers": []}
    before = {"containers": [MAIN], "initContainers": [other]}
    spec = beside if where == "containers" else before
    assert undelivered(context(pod(None, **spec))) == (
        f"container other of pod team/p sees the GPU as well, and {told}"
    )


@pytest.mark.parametrize(
    "other",
    [
        container("other"),
        container("other", ({"name": DEVICES, "value": "void"},)),
        container("other", env_from=(whole("mine"),)),
        container("other", ({"name": VARIABLE, "value": "0m"},)),
        container("other", ({"name": "CUDA_DISABLE_CONTROL", "value": "true"},)),
        container("other", env_from=(whole(),)),  # the devices stand in the first map
    ],
)
def test_another_container_that_sees_no_gpu(other: Object) -> None:
    for spec in ({"containers": [MAIN, other]}, {"initContainers": [other], "containers": [MAIN]}):
        assert handed_over(context(pod(None, **spec))) == {VARIABLE: "7680m"}


SWITCHED_OFF: Object = {"name": "CUDA_DISABLE_CONTROL", "value": "true"}
OF_ONE_DEVICE: Object = {"name": f"{VARIABLE}_0", "value": "15360m"}


@pytest.mark.parametrize(
    ("main", "other", "told"),
    [
        (
            MAIN,
            container("other", (SWITCHED_OFF,), (whole(MAP),)),
            "sets CUDA_DISABLE_CONTROL itself to 'true', which switches the limiter off",
        ),
        (
            MAIN,
            container("other", (OF_ONE_DEVICE,), (whole(MAP),)),
            f"sets {VARIABLE}_0 itself, which goes before {VARIABLE}",
        ),
        (
            MAIN,
            container("other", (), (whole("mine"), whole(MAP))),
            f"reads ConfigMap {MAP}, which could set {VARIABLE}_0, and does not read {MAP}-evar after it",
        ),
        (
            container(env=(entry(DEVICES, key="VISIBLE_DEVICES"), entry())),
            container("other", (), (whole(MAP, prefix="NVIDIA_"),)),
            f"takes {VARIABLE} from no ConfigMap and does not read {MAP}-evar whole, "
            "so a limit would not reach it",
        ),
        (
            container(env_from=(whole(),)),
            container("other", (SWITCHED_OFF,), (whole(), whole("mine"))),
            f"reads ConfigMap mine after {MAP}-evar, which could replace {DEVICES}; read {MAP}-evar last, "
            "so that it may use more than its share",
        ),
        (
            MAIN,
            container("other", (), (whole(MAP), {"secretRef": {"name": "s"}, "prefix": "NVIDIA_"})),
            f"reads Secret s after {MAP}, which could replace {DEVICES}; read {MAP} last, "
            "so that it may use more than its share",
        ),
    ],
)
def test_another_container_that_reads_the_devices_whole(main: Object, other: Object, told: str) -> None:
    """F-31, F-32: it sees the GPU whatever else it reads, since hardly any map says anything of devices."""
    assert undelivered(context(pod(containers=[main, other]))) == (
        f"container other of pod team/p sees the GPU as well, and {told}"
    )


def test_another_container_that_reads_devices_and_limit_whole() -> None:
    other = container("other", env_from=(whole(MAP), whole()))
    given = context(pod(containers=[MAIN, other]))
    assert handed_over(given) == {VARIABLE: "7680m", **COVERED}
    assert "other has the same limit for itself" in told_of(given)


@pytest.mark.parametrize(
    ("name", "who"),
    [
        ("nvidia.cdi.k8s.io/container.other", "container other"),
        ("nvidia.cdi.k8s.io/container.later", "container later"),  # there may be an ephemeral one
        ("nvidia.cdi.k8s.io/pod", "other containers"),
        ("nvidia.cdi.k8s.io", "other containers"),
    ],
)
def test_a_container_that_gets_gpus_by_an_annotation_of_its_own(name: str, who: str) -> None:
    """F-32: a plugin of the container runtime goes by it, if there is one."""
    given = context(
        pod({name: "k8s.device-plugin.nvidia.com/gpu=all"}, containers=[MAIN, container("other")])
    )
    assert undelivered(given) == (
        f"pod team/p has {who} get devices by annotation {name}, so that it may use more than its share"
    )


def test_an_annotation_that_gives_no_other_container_devices() -> None:
    """That of the container with the share is the binder's, which writes it anew."""
    given = {"nvidia.cdi.k8s.io/container.main": "GPU-1", "nvidia.cdi.k8s.io.example.com/pod": "x"}
    assert handed_over(context(pod(given, containers=[MAIN]))) == {VARIABLE: "7680m"}


@pytest.mark.parametrize("nri", ["true", "false"])
def test_gpusharing_warns_of_devices_that_others_get_by_annotation(nri: str) -> None:
    """F-32: only where it knows of a plugin that goes by it."""
    name = "nvidia.cdi.k8s.io/container.other"
    shared = pod({name: "k8s.device-plugin.nvidia.com/gpu=all"}, containers=[MAIN, container("other")])
    arguments = SharingArguments.model_validate({"cdiEnabled": "true", "nriPluginEnabled": nri})
    sharing, given = GPUSharing(Taking(), arguments), replace(context(shared), gpu_ids=("GPU-1",))
    found = anyio.run(sharing.prepare, given)
    assert isinstance(found, Prepared)
    outcome = anyio.run(sharing.pre_bind, replace(given, found=found.found))
    assert isinstance(outcome, Ready)
    warning = f"the pod has container other get devices by annotation {name}, so that it may see other GPUs"
    assert (f". Warning: {warning} as well" in outcome.message) is (nri == "true")


class Taking(Client):
    """Takes whatever is written."""

    def __init__(self) -> None:
        pass

    async def create(self, *_: object, **__: object) -> Object:
        return {}


def told_of(given: BindContext) -> str:
    found = prepared(given)
    assert isinstance(found, Prepared)
    return str(found.found)


def test_another_container_with_the_same_limit_is_told() -> None:
    other = container("other", (entry(DEVICES), entry()))
    warning = ". Warning: other has the same limit for itself, so the pod may use 15360 MiB"
    assert told_of(context(pod(containers=[MAIN, other]))).endswith(warning)
    sidecar = {**other, "restartPolicy": "Always"}
    assert told_of(context(pod(initContainers=[sidecar], containers=[MAIN]))).endswith(warning)
    # One that ends before the pod's work begins takes nothing from it.
    assert "Warning" not in told_of(context(pod(initContainers=[other], containers=[MAIN])))


@pytest.mark.parametrize(
    ("other", "source"),
    [
        (container("other", env_from=({"configMapRef": {"name": "mine"}},)), "ConfigMap mine"),
        (container("other", env_from=({"configMapRef": {"name": "mine"}}, whole())), "ConfigMap mine"),
        (
            container("other", env_from=({"prefix": "NVIDIA_", "secretRef": {"name": "s"}},)),
            "Secret s",
        ),
    ],
)
def test_another_container_that_may_see_all_gpus_is_told(other: Object, source: str) -> None:
    """Pods that no webhook of ours has prepared: it is bound, since hardly anybody writes such a map."""
    why = f". Warning: container other reads {source}, which could set NVIDIA_VISIBLE_DEVICES"
    for spec in ({"containers": [MAIN, other]}, {"initContainers": [other], "containers": [MAIN]}):
        text = told_of(context(pod(None, **spec)))
        assert text.endswith(f"{why}, so that it may use GPUs without a limit")


def test_another_container_that_sees_no_gpu_whatever_it_reads() -> None:
    foreign = {"configMapRef": {"name": "mine"}}
    harmless = {"prefix": "MY_", "configMapRef": {"name": "mine"}}
    void = {"name": DEVICES, "value": "void"}
    for other in (container("other", (void,), (foreign,)), container("other", env_from=(harmless,))):
        assert "Warning" not in told_of(context(pod(containers=[MAIN, other])))


def test_only_the_container_with_the_share_is_looked_at() -> None:
    named = {"gpu-fraction-container-name": "second"}
    here = container("second", env=(entry(config_map="p-a1b2c3d-shared-gpu-1"),))
    other = container("first", env=({"name": VARIABLE, "value": "0m"},))
    assert handed_over(context(pod(named, containers=[other, here])))
    assert "container second" in undelivered(
        context(pod(named, containers=[here, container("second")][::-1]))
    )


def test_an_init_container() -> None:
    named = {"gpu-fraction-container-name": "warm-up"}
    init = container("warm-up", env=(entry(config_map="p-a1b2c3d-shared-gpu-i0"),))
    assert handed_over(context(pod(named, initContainers=[init], containers=[container()])))
    wrong = container("warm-up", env=(entry(config_map="p-a1b2c3d-shared-gpu-0"),))
    message = undelivered(context(pod(named, initContainers=[wrong], containers=[container()])))
    assert message.endswith("from ConfigMap p-a1b2c3d-shared-gpu-0, not from p-a1b2c3d-shared-gpu-i0")


def test_an_init_container_that_reads_its_map_whole() -> None:
    named = {"gpu-fraction-container-name": "warm-up"}
    init = container("warm-up", env_from=(whole("p-a1b2c3d-shared-gpu-i0-evar"),))
    given = context(pod(named, initContainers=[init], containers=[container()]))
    assert handed_over(given) == {VARIABLE: "7680m"}


def test_a_container_that_is_not_there() -> None:
    given = context(pod({"gpu-fraction-container-name": "nope"}))
    text = "pod team/p has no container 'nope', which its annotation gpu-fraction-container-name names"
    assert prepared(given) == sharing(given) == Failed("InvalidGPUConfig", text, retry=False)


@pytest.mark.parametrize("prefix", [None, ""])
def test_a_pod_that_does_not_name_its_maps(prefix: str | None) -> None:
    unnamed = pod()
    if prefix is None:
        del unnamed["metadata"]["annotations"]["runai/shared-gpu-configmap"]
    else:
        unnamed["metadata"]["annotations"]["runai/shared-gpu-configmap"] = prefix
    failure = prepared(context(unnamed))
    assert failure == sharing(context(unnamed))
    assert isinstance(failure, Failed)
    assert (failure.reason, failure.retry) == ("InvalidGPUConfig", False)
    assert "annotation runai/shared-gpu-configmap" in failure.message


# When it has a say


@pytest.mark.parametrize("resource_type", ["Regular", "MigInstance", "", "fraction"])
def test_only_fractions_are_its_concern(resource_type: str) -> None:
    assert not plugin().concerns(context(resource_type=resource_type))
    assert plugin().concerns(context())


def test_it_is_off_unless_it_is_turned_on() -> None:
    assert GPUMemoryLimit.enabled is False
    assert "gpumemorylimit" not in [planned.cls.name for planned in resolve(BUILT_IN, {})]


# Arguments


def planned_arguments(**arguments: str) -> Arguments:
    config = PluginConfig(enabled=True, arguments=arguments)
    found = resolve(BUILT_IN, {"gpumemorylimit": config})[-1].arguments
    assert isinstance(found, Arguments)
    return found


def problem(**arguments: str) -> str:
    with pytest.raises(PluginConfigError) as caught:
        planned_arguments(**arguments)
    (only,) = caught.value.problems
    return only


def test_arguments() -> None:
    defaults = planned_arguments()
    assert (defaults.fallback_memory_mib, defaults.variable, defaults.format) == (None, VARIABLE, "mebibytes")
    given = planned_arguments(fallbackMemoryMiB="124610", variable="GPU_MEMORY_LIMIT", format="bytes")
    assert (given.fallback_memory_mib, given.variable, given.format) == (124610, "GPU_MEMORY_LIMIT", "bytes")
    assert planned_arguments(fallbackMemoryMiB="1048575").fallback_memory_mib == 1048575


@pytest.mark.parametrize(
    "value",
    [
        *(
            "",
            "0",
            "-1",
            "+1",
            "16Gi",
            "15360m",
            "15360.0",
            "1e4",
            "1_000",
            " 1",
            "1\n",
            "\u0661",
            "NaN",
            "9" * 30,
        ),
        *("1048576", "17179869184"),  # bytes, surely: a limit from it would be none
    ],
)
def test_a_fallback_that_is_no_number_of_mib_is_refused(value: str) -> None:
    assert problem(fallbackMemoryMiB=value) == (
        f"plugins: gpumemorylimit: argument 'fallbackMemoryMiB' is {value!r}: "
        "a whole number of MiB is allowed, from 1 to 1048575"
    )


@pytest.mark.parametrize("value", ["", "1A", "A-B", "A B", "A=B", "\u00c4", "A\n", "A.B", "$(A)"])
def test_a_variable_that_is_no_name_is_refused(value: str) -> None:
    assert problem(variable=value).startswith(f"plugins: gpumemorylimit: argument 'variable' is {value!r}: ")


@pytest.mark.parametrize("value", ["NVIDIA_VISIBLE_DEVICES", "RUNAI_NUM_OF_GPUS", "GPU_PORTION"])
def test_a_variable_that_gpusharing_sets_is_refused(value: str) -> None:
    assert problem(variable=value) == (
        f"plugins: gpumemorylimit: argument 'variable' is {value!r}: gpusharing sets it; take another one"
    )


@pytest.mark.parametrize("value", ["CUDA_DISABLE_CONTROL", "CUDA_REDIRECT"])
def test_a_variable_that_switches_the_limiter_off_is_refused(value: str) -> None:
    assert problem(variable=value).endswith("it switches the limiter off; take another one")


@pytest.mark.parametrize("value", ["", "MiB", "m", "Bytes", "mebibytes "])
def test_a_format_that_is_not_known_is_refused(value: str) -> None:
    text = problem(format=value)
    assert text.startswith(f"plugins: gpumemorylimit: argument 'format' is {value!r}: ")
    assert "mebibytes" in text
    assert "bytes" in text


@pytest.mark.parametrize("name", ["fallbackMemory", "fallback_memory_mib", "fallbackmemorymib", "tpyo"])
def test_an_argument_that_is_not_known_is_refused(name: str) -> None:
    assert problem(**{name: "1"}) == (
        f"plugins: gpumemorylimit: argument {name!r} is unknown; "
        "there are: fallbackMemoryMiB, variable, format"
    )


# The portion, as gpusharing looks at it before


def sharing(given: BindContext) -> Prepared | Failed | None:
    (planned,) = (item for item in resolve(BUILT_IN, {}) if item.cls is GPUSharing)
    return anyio.run(GPUSharing(NO_CLIENT, planned.arguments).prepare, given)


@pytest.mark.parametrize("portion", [*BAD_PORTIONS, "1.01", "1.5", "2", "9" * 64], ids=ascii_of)
@pytest.mark.parametrize("annotations", [{}, {"gpu-fraction": "0.5"}, {"gpu-memory": "4096"}])
def test_gpusharing_refuses_the_same_portions(portion: str, annotations: dict[str, str]) -> None:
    failure = sharing(context(pod(annotations), portion=portion))
    assert isinstance(failure, Failed)
    assert (failure.reason, failure.retry) == ("InvalidPortion", False)
    assert failure.message.startswith("spec.receivedGPU.portion is '")
    assert len(failure.message) < 300


@pytest.mark.parametrize("portion", ["0", "0.0", "0.00"])
@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {"gpu-fraction": "0.5"},  # is not what was rounded to 0.00
        {"gpu-fraction": "0"},
        {"gpu-fraction": ""},
        {"gpu-fraction": "half"},
        {"gpu-fraction": "-0.001"},
        {"gpu-memory": ""},
    ],
    ids=str,
)
def test_gpusharing_refuses_a_portion_of_nothing(portion: str, annotations: dict[str, str]) -> None:
    failure = sharing(context(pod(annotations), portion=portion))
    assert isinstance(failure, Failed)
    assert (failure.reason, failure.retry) == ("InvalidPortion", False)
    assert failure.message == (f"spec.receivedGPU.portion is {portion!r}; a share of a GPU is more than 0")


@pytest.mark.parametrize(
    ("portion", "annotations"),
    [
        ("0.50", {}),
        ("0.01", {}),
        ("1.00", {}),
        ("0.50", {"gpu-fraction": "0.5"}),
        ("0.50", {"gpu-fraction": "anything"}),  # without a limit nobody reads it
        ("0.00", {"gpu-memory": "300"}),
        ("0.00", {"gpu-fraction": "0.001"}),
        ("0.00", {"gpu-fraction": "1e-3"}),
        ("0.00", {"gpu-fraction": "0.005"}),
    ],
    ids=str,
)
def test_gpusharing_takes_a_good_portion(portion: str, annotations: dict[str, str]) -> None:
    assert isinstance(sharing(context(pod(annotations), portion=portion)), Prepared)


# KAI v0.18: a container's own annotations ask for memory, and nothing else does (N-72, N-84).

ASKED = "nvidia.com/container.main.gpu-memory.request"
LIMITED = "nvidia.com/container.main.gpu-memory.limit"


def asked_by(annotations: dict[str, str], portion: str, label: str = "15360") -> Limit | Failed:
    return limit_of(context(pod(annotations), portion=portion, label=label), None)


@pytest.mark.parametrize(
    ("annotations", "portion", "label", "expected"),
    [
        ({ASKED: "4Gi"}, "0.27", "15360", 4096),  # 27 % would be 4147: more than was asked for
        ({ASKED: "5120Mi"}, "0.33", "15360", 5120),  # 33 % would be 5068: less
        ({ASKED: "300Mi"}, "0.00", "81920", 300),
        ({LIMITED: "2Gi"}, "0.13", "15360", 2048),  # a limit alone is the request, too
        ({ASKED: "2Gi", LIMITED: "4Gi"}, "0.13", "15360", 2048),
        ({ASKED: "4500M"}, "0.28", "15360", 4291),  # 4291.5
        ({ASKED: "4Gi", "gpu-fraction": "0.5"}, "0.50", "15360", 7680),  # a binder may have written it
        ({ASKED: "4Gi", "gpu-memory": "4097"}, "0.27", "15360", 4097),
    ],
)
def test_memory_by_the_annotations_of_the_container(
    annotations: dict[str, str], portion: str, label: str, expected: int
) -> None:
    assert mib(asked_by(annotations, portion, label)) == expected


@pytest.mark.parametrize("text", ["", "much", "-1Gi", "0", "1k", "512Ki", "1e400"])
def test_memory_by_the_annotations_of_the_container_that_is_none(text: str) -> None:
    message = refused(asked_by({ASKED: text}, "0.27"), "InvalidGPUMemory")
    assert ASKED in message
    assert repr(text) in message


def test_memory_by_the_annotations_of_the_container_beyond_the_grant() -> None:
    message = refused(asked_by({ASKED: "8Gi"}, "0.27"), "MemoryExceedsGrant", retry=True)
    assert message.startswith(
        f"annotation {ASKED} of pod team/p asks for 8192 MiB, more than the request grants"
    )
    assert "more than a GPU of node n has" in refused(asked_by({ASKED: "16Gi"}, "0.27"), "MemoryExceedsCard")


@pytest.mark.parametrize(
    ("annotations", "is_ready"),
    [({ASKED: "300Mi"}, True), ({LIMITED: "300Mi"}, True), ({ASKED: "little"}, False), ({}, False)],
)
def test_a_portion_that_was_rounded_to_nothing(annotations: dict[str, str], is_ready: bool) -> None:
    """Of 300 MiB on a large card the scheduler writes the portion 0.00."""
    sharing = GPUSharing(NO_CLIENT, SharingArguments.model_validate({"cdiEnabled": "false"}))
    found = anyio.run(sharing.prepare, context(pod(annotations), portion="0.00", label="81920"))
    assert isinstance(found, Prepared) is is_ready, found
