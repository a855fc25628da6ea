"""How the picture is drawn: exactly, on any width, and without what terminals obey."""

import random
import unicodedata
from fractions import Fraction
from io import BytesIO, StringIO, TextIOWrapper

import pytest

from controller.explain.gpus.bars import ASCII, BLOCKS, Glyphs, draw, draw_from_the_top, lengths
from controller.explain.gpus.model import Picture, Sight
from controller.explain.gpus.narrowing import narrowed
from controller.explain.gpus.shares import percent
from controller.explain.terminal import Terminal
from controller.runtime.client import Object
from tests.gpus import node, picture, pod, request, reservation, user

GROUP = "3f0c9a52-6d1e-4b7c-8a55-1e9d2c704b6f"
MAPS = {
    "team-train-0": {"train-0-gpu-0-evar": {"CUDA_DEVICE_MEMORY_LIMIT": "8192m"}},
    "other-infer": {"infer-gpu-0-evar": {}},
}


def everything() -> Picture:
    return picture(
        reservation(GROUP, 1, "gpu-reservation-617c4451a7a8a54c"),
        user("train-0", GROUP),
        user("infer", GROUP, "0.25", namespace="other", phase="Pending"),
        pod("big", limits={"nvidia.com/gpu": "2"}),
        pod("m", limits={"nvidia.com/mig-1g.5gb": "2"}),
        reservation("h", 2),
        user("a", "h", "0.7"),
        user("b", "h", "0.7", going=True),
        user("lost", "k", "?"),
        nodes=(node(gpus="8", **{"1g_5gb": "7"}),),
        maps=MAPS,
    )


def everything_on(name: str) -> Picture:
    items: list[Object] = [reservation("g", on=name), user("a" * 253, "g", on=name)]
    items += (user("b", "g", "0.9", on=name), user("c" * 63, "gone", on=name))
    return picture(*items, nodes=(node(name),))


def drawn(shown: Picture, width: int = 100, glyphs: Glyphs = BLOCKS, *, is_terminal: bool = False) -> str:
    out = StringIO()
    draw(shown, Terminal(out, width=width, is_terminal=is_terminal), glyphs)
    return out.getvalue()


WIDE = """\
n  NVIDIA-A100  16384 MiB each
  ▒▒██░░░░  8 GPUs: 2 shared, 2 whole, 4 free
  GPU-00000000-0000-0000-0000-000000000001  ██████▓▓▓▓▓▓▓▓▓▓▓▓░░░░░░  75%  12288 of 16384 MiB
    group 3f0c9a52-6d1e-4b7c-8a55-1e9d2c704b6f, time-slicing
    held by kai-resource-reservation/gpu-reservation-617c4451a7a8a54c, Running
    █ other/infer   25%  4096 MiB  no limit        Pending
    ▓ team/train-0  50%  8192 MiB  limit 8192 MiB  Running
  GPU-00000000-0000-0000-0000-000000000002  █████████████████▓▓▓▓▓▓▓!!!!!!  140%  22936 of 16384 MiB
    group h, time-slicing
    held by kai-resource-reservation/gpu-reservation-h, Running
    █ team/a  70%  11468 MiB  limit unknown  Running
    ▓ team/b  70%  11468 MiB  limit unknown  Terminating
    ! OverCommitted: the shares of team/a, team/b are 140% of the card, 22936 of 16384 MiB
  device unknown  ????????????????????????  at least 0%  0 of 16384 MiB
    group k
    held by nobody
    █ team/lost  ?%  memory unknown  limit unknown  Running
    ! NoReservation: no reservation pod holds GPU group k on node n for team/lost
  whole GPUs
      team/big  2 GPUs  Running
  ██░░░░░  MIG 1g.5gb: 2 of 7 used
      team/m  2 slices  Running

1 node, 8 GPUs: 2 shared, 2 whole, 4 free
2 problems: OverCommitted on n, NoReservation on n
"""

NARROW = """\
n  NVIDIA-A100  16384 MiB each
  ▒▒██░░░░
  8 GPUs: 2 shared, 2 whole, 4 free
  GPU-00000000-0000-…0-0000-000000000001
  ███▓▓▓▓▓░░  75%  12288 of 16384 MiB
    group
    3f0c9a52-6d1e-4b7c-8a55-1e9d2c704b6f
    , time-slicing
    held by
    kai-resource-reservation/gpu-reserva
    tion-617c4451a7a8a54c, Running
    █ other/infer
        25%, 4096 MiB, no limit, Pending
    ▓ team/train-0
        50%, 8192 MiB, limit 8192 MiB,
        Running
"""

OF_OTHER = """\
n  NVIDIA-A100  16384 MiB each
  [++##....]  8 GPUs: 2 shared, 2 whole, 4 free
  GPU-00000000-0000-0000-0000-000000000001  [######============......]  75%  12288 of 16384 MiB
    group 3f0c9a52-6d1e-4b7c-8a55-1e9d2c704b6f, time-slicing
    held by kai-resource-reservation/gpu-reservation-617c4451a7a8a54c, Running
    # other/infer  25%  4096 MiB  no limit  Pending
    = 1 other      50%  8192 MiB
"""


def test_all_of_it() -> None:
    assert drawn(everything()) == WIDE


def test_on_40_columns() -> None:
    assert drawn(everything(), 40, is_terminal=True).startswith(NARROW)


def test_in_ascii_for_one_namespace() -> None:
    text = drawn(narrowed(everything(), "other"), glyphs=ASCII)
    assert text.startswith(OF_OTHER)
    assert text.isascii()


def test_a_watcher_sees_the_sum_first() -> None:
    out = StringIO()
    draw_from_the_top(everything(), Terminal(out), BLOCKS)
    assert out.getvalue().splitlines()[:4] == [*WIDE.splitlines()[-2:], "", WIDE.splitlines()[0]]


def test_nothing_to_see() -> None:
    assert drawn(picture(nodes=())) == "The nodes have no GPUs.\n"


def test_a_gpu_whose_users_may_not_be_seen() -> None:
    hidden = Sight(pods=False, unread=("may not list pods in all namespaces: it is forbidden",))
    assert (
        drawn(picture(reservation("g"), sight=hidden))
        == """\
n  NVIDIA-A100  16384 MiB each
  ▒?  2 GPUs: 1 shared, at most 1 free
  GPU-00000000-0000-0000-0000-000000000001  ????????????????????????  0%  0 of 16384 MiB
    group g, time-slicing
    held by kai-resource-reservation/gpu-reservation-g, Running
    who uses it may not be read

not shown: may not list pods in all namespaces: it is forbidden
1 node, 2 GPUs: 1 shared, 0 whole, at most 1 free
"""
    )


def test_a_node_that_may_not_be_seen() -> None:
    text = drawn(picture(user("a", "g"), nodes=(), sight=Sight(nodes=False, reservations=False)))
    assert (
        text
        == """\
n  memory unknown
  GPUs: 1 shared, how many it has may not be read
  device unknown  ████████████????????????  50%
    group g
    its reservation pod may not be read
    █ team/a  50%  memory unknown  limit unknown  Running

1 node: 1 shared, 0 whole
"""
    )


def columns(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in line)


@pytest.mark.parametrize("width", [40, 47, 60, 79, 80, 100, 160])
@pytest.mark.parametrize("name", ["n", "n" * 253])
def test_no_line_is_wider_than_the_terminal(width: int, name: str) -> None:
    for shown in (everything(), everything_on(name)):
        text = drawn(shown, width, is_terminal=True)
        assert max(map(columns, text.splitlines())) <= width, text


def test_elsewhere_no_name_is_cut() -> None:
    text = drawn(everything_on("n" * 253), 40)
    assert all(name in text for name in ("n" * 253, "a" * 253, "c" * 63))


@pytest.mark.parametrize("glyphs", [BLOCKS, ASCII])
def test_what_terminals_obey_never_gets_there(glyphs: Glyphs) -> None:
    evil = "\x1b[2J\x07\u202eevil\r\n"
    one = user(evil, evil, phase=evil)
    bad = reservation("g", None, annotations={"run.ai/reserve_for_gpu_index": evil})
    mode = {"nvidia.com/container.resource-reservation.gpu-compute.mode": evil}
    labelled = node(evil, memory=evil)
    labelled["metadata"]["labels"]["nvidia.com/gpu.product"] = evil
    items = bad, reservation("h", annotations=mode), one, user("b", "g"), user("c", "h")
    shown = picture(*items, pod(evil, limits={f"nvidia.com/mig-{evil}": "1"}), nodes=(node(), labelled))
    for width in (40, 100):
        text = drawn(shown, width, glyphs, is_terminal=True)
        assert all(line.isprintable() for line in text.splitlines())
        assert "evil" in text


def test_a_stream_that_knows_ascii_only_gets_it() -> None:
    raw = BytesIO()
    stream = TextIOWrapper(raw, encoding="ascii")
    terminal = Terminal(stream)
    assert not terminal.can_draw
    draw(picture(reservation("g"), user("ä", "g")), terminal, ASCII)
    stream.flush()
    assert b"team/\\xe4" in raw.getvalue()


class TestBars:
    @pytest.mark.parametrize(
        ("portions", "expected"),
        [
            ([], ([], 0)),
            (["1/2"], ([5], 0)),
            (["1/2", "1/2"], ([5, 5], 0)),
            (["1/1000"], ([1], 0)),
            (["999/1000"], ([9], 0)),
            (["1/3", "1/3", "1/3"], ([3, 4, 3], 0)),
            (["1"], ([10], 0)),
            (["7/10", "7/10"], ([7, 3], 4)),
            (["9"], ([10], 6)),
            (["1", "1/1000"], ([10, 0], 1)),
        ],
    )
    def test_lengths(self, portions: list[str], expected: tuple[list[int], int]) -> None:
        assert lengths([Fraction(text) for text in portions], 10) == expected

    @pytest.mark.parametrize("seed", range(30))
    def test_a_bar_is_full_only_if_the_card_is(self, seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311 -- for repeatable portions
        size = chance.randrange(10, 25)
        portions = [Fraction(chance.randrange(0, 60), 100) for _ in range(chance.randrange(0, 6))]
        found, excess = lengths(portions, size)
        total = sum(portions, Fraction(0))
        assert len(found) == len(portions)
        assert min(found, default=0) >= 0
        assert (sum(found) == size) == (total >= 1)
        assert (excess > 0) == (total > 1)
        assert abs(sum(found) - min(Fraction(1), total) * size) <= max(1, len(portions))
        if size > len(portions) and total < Fraction(1, 2):
            assert all((length > 0) == (portion > 0) for length, portion in zip(found, portions, strict=True))

    @pytest.mark.parametrize(
        ("portion", "expected"),
        [
            ("0", "0%"),
            ("1/100000", "<0.1%"),
            ("1/3", "33.3%"),
            ("99999/100000", "99.9%"),
            ("1", "100%"),
            ("100001/100000", "100.1%"),
            ("3/2", "150%"),
        ],
    )
    def test_percent(self, portion: str, expected: str) -> None:
        assert percent(Fraction(portion)) == expected


def test_what_only_rounding_makes_more_than_the_card_is_drawn_as_full() -> None:
    sixths = [user(name, "g", None, memory="2730") for name in "abcdef"]
    grants = tuple(request(item, "g", portion="0.17") for item in sixths)
    text = drawn(picture(reservation("g"), *sixths, requests=grants, nodes=(node(memory=None),)))
    assert "  about 102%" in text
    assert "!" not in text
