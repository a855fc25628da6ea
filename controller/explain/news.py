"""What is told beside objects: events, and the Lease that says whether a binder leads. Pure."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from controller.explain.answer import Event, Leader
from controller.explain.facts import mapping, moment_of
from controller.explain.reads import Read
from controller.runtime.client import Object

_SKEW = timedelta(seconds=60)
"""By so much clocks may differ."""


def events_of(items: Iterable[Object]) -> tuple[Event, ...]:
    """Events, those that say the same as one; newest last."""
    kept: dict[tuple[str, str, str, str], Event] = {}
    for item in items:
        regarding = mapping(item.get("involvedObject"))
        about = f"{regarding.get('kind', '')}/{regarding.get('name', '')}"
        kind, reason, message = (str(item.get(name) or "") for name in ("type", "reason", "message"))
        series = mapping(item.get("series"))
        last = moment_of(series.get("lastObservedTime") or item.get("lastTimestamp") or item.get("eventTime"))
        first = moment_of(item.get("firstTimestamp") or item.get("eventTime")) or last
        count = series.get("count") or item.get("count") or 1
        source = mapping(item.get("source")).get("component") or item.get("reportingComponent") or ""
        event = Event(
            kind=kind,
            reason=reason,
            about=about,
            source=str(source),
            message=message,
            count=count if isinstance(count, int) else 1,
            first=first,
            last=last,
        )
        key = (about, kind, reason, message)
        kept[key] = _together(kept[key], event) if key in kept else event
    return tuple(sorted(kept.values(), key=lambda event: (_since(event.last), event.about, event.reason)))


def _together(one: Event, other: Event) -> Event:
    firsts = [moment for moment in (one.first, other.first) if moment is not None]
    newest = one if _since(one.last) >= _since(other.last) else other
    return Event(
        kind=one.kind,
        reason=one.reason,
        about=one.about,
        source=newest.source,
        message=one.message,
        count=one.count + other.count,
        first=min(firsts, default=None),
        last=newest.last,
    )


def _since(moment: datetime | None) -> float:
    return moment.timestamp() if moment is not None else 0.0


def leader_of(read: Read, now: datetime, *, is_idle: bool) -> Leader:
    """Whether a binder leads, by its Lease.

    Args:
        read: The Lease. It may be left over: KAI's binder never gives it back, and election may be off now.
        now: The time here, which need not be that of the one who wrote the Lease.
        is_idle: Whether no binder has done anything for a request that waits: then nobody may lead indeed.
    """
    lease = read.one
    if lease is None:
        if read.problem:
            return Leader(leads=None, text="cannot tell: the Lease may not be read")
        return Leader(
            leads=None, text="cannot tell: there is no Lease; one replica without --leader-elect has none"
        )
    spec = mapping(lease.get("spec"))
    holder, renewed = str(spec.get("holderIdentity") or ""), moment_of(spec.get("renewTime"))
    duration_s = spec.get("leaseDurationSeconds")
    lasts = timedelta(seconds=duration_s if isinstance(duration_s, int) else 15) + _SKEW
    if holder and renewed is not None and renewed + lasts >= now:
        return Leader(leads=True, text=f"{holder} leads")
    why = "the Lease is free"
    if holder:
        since = f"since {renewed:%Y-%m-%dT%H:%M:%SZ}" if renewed is not None else "ever"
        why = f"{holder} has not renewed the Lease {since}"
    if is_idle:
        text = f"nobody leads, or a binder without --leader-elect is behind: {why}"
        return Leader(leads=False, text=f"{text}, and nothing was written to the request")
    return Leader(leads=None, text=f"cannot tell: {why}; without --leader-elect that means nothing")
