"""The picture as JSON."""

import re
from pathlib import Path

from controller.explain.gpus.document import document_of
from controller.explain.gpus.model import Sight, Trouble
from controller.explain.gpus.narrowing import narrowed
from controller.explain.gpus.shares import LimitSource
from tests.gpus import UUID, node, picture, pod, reservation, user


def test_all_of_it() -> None:
    shown = picture(
        reservation("g"),
        user("a", "g", "0.333"),
        user("b", "g", "?", namespace="other"),
        pod("w", limits={"nvidia.com/gpu": "1"}),
        pod("m", namespace="other", limits={"nvidia.com/mig-1g.5gb": "8"}),
        nodes=(node(**{"1g_5gb": "7"}),),
        sight=Sight(unread=("a sentence",)),
    )
    assert document_of(narrowed(shown, "team")) == {
        "kind": "GPUs",
        "version": 1,
        "nodes": [
            {
                "name": "n",
                "product": "NVIDIA-A100",
                "memoryMiB": 16384,
                "gpus": {"total": 2, "shared": 1, "whole": 1, "free": 0},
                "shared": [
                    {
                        "device": UUID.format(1),
                        "group": "g",
                        "mode": "time-slicing",
                        "reservation": {
                            "pod": "kai-resource-reservation/gpu-reservation-g",
                            "phase": "Running",
                        },
                        "awaited": False,
                        "portion": None,
                        "memoryMiB": None,
                        "pods": [
                            {
                                "pod": "team/a",
                                "others": 0,
                                "phase": "Running",
                                "portion": 0.333,
                                "memoryMiB": 5455,
                                "limit": {"source": "Unknown", "memoryMiB": None},
                            },
                            {
                                "pod": None,
                                "others": 1,
                                "phase": None,
                                "portion": None,
                                "memoryMiB": None,
                                "limit": None,
                            },
                        ],
                        "problems": [],
                    }
                ],
                "whole": [{"pod": "team/w", "others": 0, "phase": "Running", "count": 1}],
                "mig": [
                    {
                        "profile": "1g.5gb",
                        "total": 7,
                        "used": 8,
                        "pods": [{"pod": None, "others": 1, "phase": None, "count": 8}],
                    }
                ],
                "problems": [
                    {
                        "reason": "TooManyGPUs",
                        "message": "8 slices 1g.5gb of node n are in use, and it has 7 to allocate",
                    }
                ],
            }
        ],
        "problems": 1,
        "unread": ["a sentence"],
    }


def test_what_is_unknown_is_null() -> None:
    shown = picture(user("a", "g"), nodes=(), sight=Sight(nodes=False, reservations=False))
    (found,) = document_of(shown)["nodes"]
    assert (found["product"], found["memoryMiB"], found["gpus"]["total"], found["gpus"]["free"]) == (
        None,
    ) * 4
    (gpu,) = found["shared"]
    assert (gpu["device"], gpu["mode"], gpu["reservation"], gpu["memoryMiB"]) == (None,) * 4
    assert gpu["portion"] == 0.5


def test_the_docs_have_every_word() -> None:
    text = (Path(__file__).parents[3] / "docs/gpus.md").read_text()
    table = text.partition("| Problem |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == [str(trouble) for trouble in Trouble]
    assert all(f"`{source}`" in text for source in LimitSource)
