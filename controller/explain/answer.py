"""The answer of `explain` as data: what `-o json` prints, and what the text is made from.

Made by `judge.py`. Invariant: the JSON has these fields under these names, in camelCase; fields are added,
never renamed, unless `version` goes up.
"""

from datetime import datetime
from enum import StrEnum

from msgspec import Struct, field

from controller.explain.remedies import Advice

VERSION = 1


class Verdict(StrEnum):
    """Whether the pod is bound."""

    BOUND = "bound"
    NOT_BOUND = "notBound"


class Request(Struct, frozen=True, kw_only=True):
    """A BindRequest.

    Attributes:
        namespace: Of it.
        name: Of it.
        created: When the scheduler made it.
        phase: status.phase; empty while it is new.
        reason: status.reason, the last failure as one line.
        is_deleting: Whether it is being deleted.
    """

    namespace: str
    name: str
    created: datetime | None
    phase: str
    reason: str
    is_deleting: bool


class Group(Struct, frozen=True, kw_only=True):
    """A GPU that is shared, as the request names it, and its reservation.

    Attributes:
        name: Of the group.
        mode: How its compute units are shared; empty if the request does not say.
        reservation: namespace/name of the reservation pod; empty if there is none, or nobody knows.
        is_known: Whether reservations could be read.
        phase: Of the reservation pod.
        node: It is on.
        device: It has reported; empty while it has not.
        reserved_mode: The mode that it was made for.
        hindrances: What its status says of why it does not start.
        image: Of its container.
    """

    name: str
    mode: str
    reservation: str = ""
    is_known: bool = True
    phase: str = ""
    node: str = ""
    device: str = ""
    reserved_mode: str = ""
    hindrances: str = ""
    image: str = ""


class Decision(Struct, frozen=True, kw_only=True):
    """What the scheduler decided.

    Attributes:
        node: The chosen one.
        node_state: What is known of it, in words; empty if nothing.
        type: `Regular`, `Fraction`, `MigInstance` or empty.
        gpu_count: Number of GPUs.
        gpu_portion: Share of each.
        compute_portion: Share of the compute power of each.
        groups: Of shared GPUs.
        claims: Names of the claims that it allocates.
        problem: What cannot be understood of it; empty if all can.
    """

    node: str = ""
    node_state: str = ""
    type: str = ""
    gpu_count: int | None = None
    gpu_portion: str = ""
    compute_portion: str = ""
    groups: tuple[Group, ...] = ()
    claims: tuple[str, ...] = ()
    problem: str = ""


class Step(Struct, frozen=True, kw_only=True):
    """A condition of the request.

    Attributes:
        type: Of the condition.
        status: True, False or Unknown.
        reason: One word.
        message: A sentence.
        since: Since when the status is so.
        is_stale: Whether it speaks of an earlier spec.
        is_ours: Whether it is the binder's, and not that of others.
    """

    type: str
    status: str
    reason: str
    message: str
    since: datetime | None
    is_stale: bool
    is_ours: bool


class Attempts(Struct, frozen=True, kw_only=True):
    """How often it was tried.

    Attributes:
        failed: So many have failed.
        limit: spec.backoffLimit; None means one.
        is_over: Whether no further attempt comes for this request.
        last: When the last one ended, so far as known.
        next_in_s: About so many seconds until the next, by the binder's default delays; None if none comes or
            it is not known.
        text: All of that as a sentence.
    """

    failed: int
    limit: int | None
    is_over: bool
    last: datetime | None
    next_in_s: float | None
    text: str


class Pod(Struct, frozen=True, kw_only=True):
    """The pod.

    Attributes:
        namespace: Of it.
        name: Of it.
        is_known: Whether it could be read.
        exists: Whether it is there.
        is_of_request: Whether the request was made for this very pod.
        scheduler: Its spec.schedulerName.
        node: It is on; empty if on none.
        phase: Of it.
        is_deleting: Whether it is being deleted.
        lines: What else it says: conditions, gates, containers that wait or have ended.
    """

    namespace: str
    name: str
    is_known: bool
    exists: bool
    is_of_request: bool
    scheduler: str = ""
    node: str = ""
    phase: str = ""
    is_deleting: bool = False
    lines: tuple[str, ...] = ()


class Claim(Struct, frozen=True, kw_only=True):
    """A claim that the pod uses.

    Attributes:
        kind: PersistentVolumeClaim or ResourceClaim.
        name: Of it.
        state: In words.
        is_ready: Whether nothing is left to be done for it; None if nobody knows.
    """

    kind: str
    name: str
    state: str
    is_ready: bool | None


class Other(Struct, frozen=True, kw_only=True):
    """Another request of the same group.

    Attributes:
        namespace: Of it.
        name: Of it.
        pod: Its pod's name.
        group: That both have.
        portion: Share of the GPU.
        phase: Of it.
    """

    namespace: str
    name: str
    pod: str
    group: str
    portion: str
    phase: str


class Event(Struct, frozen=True, kw_only=True):
    """Events that say the same.

    Attributes:
        kind: Normal or Warning.
        reason: One word.
        about: Kind/name of the object.
        source: Who says it.
        message: What.
        count: How often.
        first: When at first.
        last: When last.
    """

    kind: str
    reason: str
    about: str
    source: str
    message: str
    count: int
    first: datetime | None
    last: datetime | None


class Leader(Struct, frozen=True, kw_only=True):
    """Whether a binder leads.

    Attributes:
        leads: None if it is not known.
        text: In words.
    """

    leads: bool | None
    text: str


class Answer(Struct, frozen=True, kw_only=True):
    """The whole of it.

    Attributes:
        verdict: Whether the pod is bound.
        summary: The answer in one sentence.
        request: The request, if there is one that may be read.
        decision: What it says.
        steps: Its conditions, in their order.
        attempts: How often it was tried.
        pod: Its pod.
        claims: Of the pod.
        others: Other requests of its groups.
        requests: Names of other requests for the same pod.
        leader: Whether a binder leads.
        events: Of all of these, newest last.
        advice: What to do, in this order.
        then: What comes after that.
        notes: What else is worth knowing.
        missing: What could not be read, and why.
    """

    verdict: Verdict
    summary: str
    request: Request | None
    decision: Decision | None
    steps: tuple[Step, ...]
    attempts: Attempts | None
    pod: Pod
    claims: tuple[Claim, ...]
    others: tuple[Other, ...]
    requests: tuple[str, ...]
    leader: Leader
    events: tuple[Event, ...]
    advice: tuple[Advice, ...]
    then: str
    notes: tuple[str, ...]
    missing: tuple[str, ...] = field(default=())


def as_json(value: object) -> object:
    """Anything of these as JSON knows it: names in camelCase, times as Kubernetes writes them."""
    if isinstance(value, Struct):
        return {_camel(name): as_json(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple):
        return [as_json(part) for part in value]
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%SZ")
    return value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))
