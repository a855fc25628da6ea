"""How long each fault was felt."""

from tests.chaos.recovery import Healed, table


def test_the_next_bind_counts() -> None:
    fault = Healed("etcd-killed", began_s=10, ended_s=20)
    assert fault.measured([15, 31, 22.5, 40]).normal_s == 2.5
    assert fault.measured([15]).normal_s is None


def test_the_table_has_medians() -> None:
    binds_s = [21, 35, 60]
    healed = [Healed("etcd-killed", 0, ended_s).measured(binds_s) for ended_s in (20, 30, 40, 70)]
    lines = table([*healed, Healed("never", 0, 99)]).splitlines()
    assert [line.split() for line in lines] == [
        ["fault", "times", "median", "longest"],
        ["etcd-killed", "4", "5.0", "s", "20.0", "s"],
    ]
