"""What is kept of objects that were read."""

from controller.explain.gpus.amounts import allocatable
from controller.explain.gpus.reading import node_kept


def test_a_node_without_a_status_has_nothing_to_allocate() -> None:
    kept = node_kept({"metadata": {"name": "n"}})
    assert (kept["metadata"]["labels"], allocatable(kept)) == ({}, {})
