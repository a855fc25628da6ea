"""What the agent makes of what NVML finds; pynvml is the real one, the library beneath it is not."""

import sys

import pytest
from fakenvml import Card, Machine, install

from controller.agent.device import DeviceError, discover, names_device
from controller.reservation.manifest import device_of

CARD = "GPU-5a1f0000-0001-0002-0003-00000000aaaa"
OTHER = "GPU-5a1f0000-0001-0002-0003-00000000bbbb"
SLICE = "MIG-7c2e0000-0001-0002-0003-00000000cccc"
OLD_SLICE = f"MIG-{CARD}/7/0"
LOST = 15


def found(machine: Machine, **environ: str) -> str:
    """The device; whatever came of it, the library was let go of."""
    install(machine)
    try:
        return discover(environ)
    finally:
        assert machine.opened == machine.closed


def refusal(machine: Machine, **environ: str) -> str:
    with pytest.raises(DeviceError) as raised:
        found(machine, **environ)
    return str(raised.value)


@pytest.mark.parametrize(
    ("card", "device"),
    [
        (Card(CARD), CARD),
        (Card(CARD, mig=False), CARD),
        (Card(CARD, mig=True, slices=(SLICE,)), SLICE),
        (Card(CARD, mig=True, slices=(OLD_SLICE,)), OLD_SLICE),
    ],
    ids=["no MIG", "MIG off", "a slice", "a slice by its old name"],
)
def test_one_device(card: Card, device: str) -> None:
    assert found(Machine((card,))) == device


def test_a_driver_that_does_not_know_mig() -> None:
    assert found(Machine((Card(CARD),), missing=("nvmlDeviceGetMigMode",))) == CARD


@pytest.mark.parametrize("device", [CARD, SLICE, OLD_SLICE])
def test_the_binder_takes_what_the_agent_finds(device: str) -> None:
    metadata = {"name": "r", "namespace": "n", "annotations": {"run.ai/reserve_for_gpu_index": device}}
    assert device_of({"metadata": metadata}) == device


def test_a_card_in_slices_is_never_named_as_a_whole() -> None:
    told = refusal(Machine((Card(CARD, mig=True),)), NVIDIA_VISIBLE_DEVICES="all")
    assert f"MIG is on for GPU {CARD}, but none of its slices is visible" in told
    assert "NVIDIA_VISIBLE_DEVICES is all" in told


def test_several_slices() -> None:
    told = refusal(Machine((Card(CARD, mig=True, slices=(SLICE, "MIG-2")),)))
    assert f"2 MIG slices are visible ({SLICE}, MIG-2; NVIDIA_VISIBLE_DEVICES is not set)" in told


def test_several_cards() -> None:
    told = refusal(Machine((Card(CARD), Card(OTHER))), NVIDIA_VISIBLE_DEVICES="all")
    assert f"2 GPUs are visible ({CARD}, {OTHER}; NVIDIA_VISIBLE_DEVICES is all)" in told


def test_of_several_cards_one_does_not_answer() -> None:
    told = refusal(Machine((Card(CARD, error=LOST), Card("GPU-\xff"), *[Card(OTHER)] * 14)))
    assert told.startswith("16 GPUs are visible (one without a UUID (GPU is lost), one without a UUID (")
    assert f"{OTHER} and 8 more" in told


def test_no_card() -> None:
    told = refusal(Machine(), NVIDIA_VISIBLE_DEVICES="void")
    assert told.startswith("no GPU is visible (NVIDIA_VISIBLE_DEVICES is void)")


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (Machine(library=False), "the container has no libnvidia-ml.so.1"),
        (Machine(init=9), "driver is not loaded"),
        (Machine(init=18), "are of different versions"),
        (Machine(init=4), "does not let this user ask"),
        (Machine(init=17), "the operating system blocks"),
        (Machine(init=999), "Unknown Error (code 999)"),
        (Machine(init=27), "an error of the stand-in (code 27)"),
        (Machine((Card(CARD, error=LOST),)), "the GPU is lost"),
        (Machine((Card(CARD, error=16),)), "has to be reset"),
        (Machine(missing=("nvmlInitWithFlags",)), "is too old"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_error_of_nvml_is_one_sentence(machine: Machine, words: str) -> None:
    told = refusal(machine)
    assert words in told
    assert "\n" not in told


@pytest.mark.parametrize(
    "uuid",
    [
        "",
        "GPU-",
        "GPU-\xff\xfe",
        "all",
        "GPU-1,GPU-2",
        "GPU-1\n",
        "void",
        "MIG-1",
        "GPU-" + "a" * 80 + "\xc3\xa9",
    ],
)
def test_what_is_no_uuid_is_not_reported(uuid: str) -> None:
    assert "which is no UUID" in refusal(Machine((Card(uuid),)))


def test_a_slice_is_not_called_like_a_card() -> None:
    assert "which is no UUID" in refusal(Machine((Card(CARD, mig=True, slices=(OTHER,)),)))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(DeviceError, match=r"nvidia-ml-py cannot be used .*pip install 'kai-binder\[agent\]'"):
        discover({})


@pytest.mark.parametrize(
    ("text", "is_uuid"), [(CARD, True), (SLICE, True), ("0", False), ("", False), ("gpu-1", False)]
)
def test_forms_of_annotations(text: str, is_uuid: bool) -> None:
    assert names_device(text) is is_uuid
