"""What a pod says of itself."""

import pytest

from controller.kai.pods import full_name
from controller.runtime.client import Object


@pytest.mark.parametrize(
    ("metadata", "name"),
    [
        ({"name": "web", "namespace": "team"}, "team/web"),
        ({"name": "node-1"}, "node-1"),
        ({"generateName": "job-", "namespace": "team"}, "team/job-…"),
        ({"name": "", "generateName": "job-"}, "job-…"),
        ({"namespace": "team"}, "team/…"),
    ],
)
def test_how_messages_name_it(metadata: Object, name: str) -> None:
    """A new pod may have no name yet."""
    assert full_name({"metadata": metadata}) == name
