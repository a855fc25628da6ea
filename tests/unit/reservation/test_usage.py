"""Which groups binds use, and which reservation pods count otherwise than the cache shows."""

import pytest

from controller.reservation.usage import Usage
from controller.runtime.client import Object


def reservation(uid: str = "u", group: str = "g") -> Object:
    return {"metadata": {"name": "r", "uid": uid, "labels": {"runai-gpu-group": group}}}


def test_a_group_is_used_until_its_last_bind_ends() -> None:
    usage, told = Usage(), list[str]()
    with usage.of(("g", "h"), told.append):
        with usage.of(("g",), told.append):
            assert usage.is_used("g")
        assert told == []
        usage.relied_on.add("g")
        usage.unseen["g"] = reservation()
    assert told == ["g", "h"]
    assert not usage.is_used("g")
    assert not usage.relied_on
    assert not usage.unseen


def test_a_device_is_a_groups_alone_until_its_last_bind_ends() -> None:
    usage = Usage()
    with usage.of(("g",), list[str]().append):
        with usage.of(("g",), list[str]().append):
            usage.assure("g", "node", "GPU-1", reservation())
        assert usage.assured("node", "GPU-1") == reservation()
        assert usage.assured("node", "GPU-2") is None
        assert usage.assured("other", "GPU-1") is None
        with usage.of(("h",), list[str]().append):  # the first one's reservation has gone
            usage.assure("h", "node", "GPU-1", reservation("v", "h"))
            with usage.of(("g",), list[str]().append):
                pass
        assert usage.assured("node", "GPU-1") is None


def test_the_end_of_a_former_group_takes_no_device_from_another() -> None:
    usage = Usage()
    with usage.of(("h",), list[str]().append):
        with usage.of(("g",), list[str]().append):
            usage.assure("g", "node", "GPU-1", reservation())
            usage.assure("h", "node", "GPU-1", reservation("v", "h"))
        assert usage.assured("node", "GPU-1") == reservation("v", "h")
    assert usage.assured("node", "GPU-1") is None


def test_what_is_given_up_is_looked_at_at_once_while_others_use_the_group() -> None:
    """F-21."""
    usage, told = Usage(), list[str]()
    with usage.of(("g",), told.append):
        usage.give_up(reservation())
        assert told == ["g"]
        assert usage.is_given_up(reservation())
        assert usage.given_up("g") == [reservation()]
        assert usage.given_up("other") == []
        usage.forgive(reservation())
        assert not usage.is_given_up(reservation())


def test_what_is_being_removed_counts_no_more() -> None:
    usage = Usage()
    usage.unseen["g"] = reservation()
    usage.give_up(reservation())
    with usage.removing(reservation()):
        assert usage.was_removed(reservation())
    assert usage.was_removed(reservation())
    assert not usage.was_removed(reservation("another"))
    assert not usage.unseen
    assert not usage.given_up("g")


def test_what_could_not_be_removed_counts_again() -> None:
    usage = Usage()
    usage.give_up(reservation())
    with pytest.raises(OSError, match="no"), usage.removing(reservation()):
        raise OSError("no")
    assert not usage.was_removed(reservation())
    assert usage.is_given_up(reservation())


def test_removed_pods_are_not_remembered_for_ever() -> None:
    usage = Usage()
    for number in range(1500):
        with usage.removing(reservation(str(number))):
            pass
    assert not usage.was_removed(reservation("0"))
    assert usage.was_removed(reservation("1499"))
