"""What to do about each reason: the one table that `explain` and docs/conditions.md show.

Pure. Invariant: every reason that a condition of ours can have is in it; a step may name `<pod>` and other
words of `WORDS`, which `explain` fills in and the docs leave as they are.
"""

import re
from collections.abc import Callable, Mapping

from msgspec import Struct

from controller.explain.remedies_bind import BIND, Final, Remedy
from controller.explain.remedies_gpu import GPU
from controller.explain.remedies_pod import SITUATIONS, UNNAMED_DELETION
from controller.explain.remedies_storage import STORAGE
from controller.kai.names import is_object_name
from controller.kai.sharing import is_group

__all__ = [
    "REMEDIES",
    "SECTIONS",
    "SITUATIONS",
    "UNNAMED_DELETION",
    "WORDS",
    "Advice",
    "Final",
    "Remedy",
    "advice_for",
    "is_final",
]

WORDS = frozenset(
    {
        *("namespace", "request", "pod", "node", "group", "claim", "image", "uid"),
        *("reservation", "reservation-namespace", "binder-namespace"),
    }
)
"""What may stand in a step between `<` and `>`."""

SECTIONS: Mapping[str, Mapping[str, Remedy]] = {
    "The request, the pod, the node": BIND,
    "Shares of GPUs and the limit of their memory": GPU,
    "Volumes and resource claims": STORAGE,
}
REMEDIES: Mapping[str, Remedy] = {
    reason: found for part in SECTIONS.values() for reason, found in part.items()
}

_UNKNOWN = Remedy(
    "False",
    "A reason that this version does not know: of a plugin of your own, or of another binder.",
    ("Read the message: it is all that is known here.", "See the log of the binder: {log}"),
)
_LOG = "kubectl logs -n <binder-namespace> deployment/binder"


class Advice(Struct, frozen=True):
    """What is to be done about one thing.

    Attributes:
        about: The condition, pod or claim that it is about.
        reason: The key in the table.
        means: What it means, as a sentence.
        steps: What to do, one sentence or command each.
    """

    about: str
    reason: str
    means: str
    steps: tuple[str, ...]


def is_final(reason: str) -> bool:
    """Whether a request that failed for this reason is never tried again, as far as the reason alone says."""
    remedy = REMEDIES.get(reason)
    return remedy is not None and remedy.final is Final.ALWAYS


def advice_for(about: str, reason: str, words: Mapping[str, str]) -> Advice:
    """What to do about a reason, or about one of `SITUATIONS`.

    Args:
        about: The condition, pod or claim.
        reason: Any word; unknown ones get advice, too.
        words: What to put in for `<pod>` and so on; what is missing, or no such name,
            stays as it is.
    """
    remedy = REMEDIES.get(reason) or SITUATIONS.get(reason) or _UNKNOWN
    return Advice(about, reason, remedy.means, tuple(filled(step, words) for step in remedy.steps))


def filled(step: str, words: Mapping[str, str]) -> str:
    """A step with what is known in place of `<pod>` and so on.

    A step may be copied to a shell, so what is no such name, whoever wrote it, stays out.
    """

    def value(match: re.Match[str]) -> str:
        found = words.get(match[1], "")
        return found if _PATTERNS.get(match[1], is_object_name)(found) else match[0]

    return _WORD.sub(value, step.replace("{log}", _LOG))


def _is_image(text: str) -> bool:
    return _IMAGE.fullmatch(text) is not None


_WORD = re.compile("<(" + "|".join(sorted(WORDS, key=len, reverse=True)) + ")>")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,511}")
_PATTERNS: Mapping[str, Callable[[str], bool]] = {"group": is_group, "image": _is_image}
"""Of words that are no names of objects."""
