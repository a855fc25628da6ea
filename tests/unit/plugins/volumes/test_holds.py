"""What attempts keep from each other."""

from controller.plugins.volumes.holds import Holds


def test_holds_are_shared_by_those_of_one_purpose_until_the_last_lets_go() -> None:
    holds = Holds()
    assert holds.take("v", "claim")
    assert holds.take("v", "claim")
    assert not holds.take("v", "another")
    holds.release("v")
    assert not holds.take("v", "another")
    holds.release("v")
    assert holds.purposes == {}
    assert holds.take("v", "another")
