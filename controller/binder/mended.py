"""Which specs have failed for good where the status cannot say it: KAI's own CRD has no observedGeneration.

The reconciler asks when a request changes. Without this, a spec that somebody has mended would be taken for
the one that failed, and nothing would be tried, nor said. Invariant: of a request that is gone nothing stays.
"""

from controller.kai.request import BindStatus, is_over
from controller.runtime.cache import Key, key_of
from controller.runtime.client import Object


class GivenUp:
    """Notes what this process gave up. After a restart it is not known any more."""

    def __init__(self) -> None:
        self._specs: dict[Key, tuple[str, int]] = {}

    def note(self, item: Object, latest: Object) -> None:
        """Notes how a request ended.

        Args:
            item: The request that was worked on.
            latest: The same with its status of now.
        """
        if is_over(latest) and BindStatus.of(latest).observed_generation is None:
            self._specs[key_of(item)] = _spec_of(item)
        else:
            self.forget(key_of(item))

    def forget(self, key: Key) -> None:
        """Whatever becomes of this request, it is another one."""
        self._specs.pop(key, None)

    def is_mended(self, item: Object) -> bool:
        """Whether a request that was given up has got another spec since."""
        given_up = self._specs.get(key_of(item))
        if given_up is None or item["metadata"].get("deletionTimestamp"):
            return False
        uid, generation = _spec_of(item)
        return given_up[0] == uid and given_up[1] != generation


def _spec_of(item: Object) -> tuple[str, int]:
    metadata = item["metadata"]
    return metadata["uid"], metadata.get("generation", 0)
