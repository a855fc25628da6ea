"""The answer of `explain` as text for people: readable from 40 columns on."""

from datetime import datetime

from controller.explain.answer import Answer, Decision, Group, Step, Verdict
from controller.explain.terminal import Style, Terminal
from controller.kai.reasons import ConditionType

_MOST_EVENTS = 12
_MOST_OTHERS = 10
_SILENT = ("NotApplicable", "Blocked")
"""Reasons whose messages say nothing more."""
_STYLES = {"True": Style.GOOD, "False": Style.BAD, "Unknown": Style.WAITING}
_MARKS = {"True": ("✓", "+"), "False": ("✗", "x"), "Unknown": ("…", ".")}


def show(answer: Answer, terminal: Terminal, now: datetime) -> None:
    """Writes an answer.

    Args:
        answer: The answer.
        terminal: Where to.
        now: What ages are counted from.
    """
    _Text(answer, terminal, now).show()


def age(moment: datetime | None, now: datetime) -> str:
    """How long ago something was, shortly; empty if nobody knows."""
    if moment is None:
        return ""
    seconds = max(0, round((now - moment).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


class _Text:
    """The parts of the text, in their order."""

    def __init__(self, answer: Answer, terminal: Terminal, now: datetime) -> None:
        self._answer = answer
        self._out = terminal
        self._now = now

    def show(self) -> None:
        answer = self._answer
        style = Style.GOOD if answer.verdict is Verdict.BOUND else Style.BAD
        self._out.paragraph((_sentence(answer.summary), style))
        for note in answer.notes:
            self._out.paragraph(note, indent=2)
        self._request()
        self._steps()
        self._groups()
        self._pod()
        self._events()
        self._advice()
        if answer.missing:
            self._title("Not read, so that this may be incomplete")
            for sentence in answer.missing:
                self._out.paragraph(f"- {sentence}", indent=2, hang=2)

    def _title(self, text: str) -> None:
        self._out.blank()
        self._out.paragraph((text, Style.TITLE))

    def _field(self, name: str, value: str, style: Style = Style.PLAIN) -> None:
        if value:
            self._out.paragraph((f"{name}: ", Style.FAINT), (value, style), indent=2, hang=2)

    def _request(self) -> None:
        request, decision = self._answer.request, self._answer.decision
        if request is None or decision is None:
            return
        made = age(request.created, self._now)
        self._title("Decided by the scheduler")
        self._field("request", f"{request.namespace}/{request.name}" + (f", {made} ago" if made else ""))
        self._field("pod", self._answer.pod.name)
        state = f" ({decision.node_state})" if decision.node_state else ""
        self._field("node", decision.node + state)
        self._field("gives", _gives(decision))
        self._field("claims", ", ".join(decision.claims))
        attempts = self._answer.attempts
        self._field("phase", request.phase or "none yet")
        self._field("attempts", attempts.text if attempts is not None else "")
        if not self._answer.steps:
            self._field("reason", request.reason)
        self._field("other requests for this pod", ", ".join(self._answer.requests))
        self._field("binder", self._answer.leader.text)

    def _steps(self) -> None:
        if not self._answer.steps:
            return
        self._title("Steps")
        for step in self._answer.steps:
            self._step(step)

    def _step(self, step: Step) -> None:
        style = _STYLES.get(step.status, Style.PLAIN)
        mark = _MARKS.get(step.status, ("?", "?"))[0 if self._out.can_draw else 1]
        since = age(step.since, self._now)
        said = f"{step.status} {step.reason}".strip() + (f", for {since}" if since else "")
        said += " (of an earlier spec)" if step.is_stale else ""
        said += "" if step.is_ours else " (not the binder's)"
        self._out.paragraph((f"{mark} ", style), f"{step.type}: ", (said, style), indent=2, hang=4)
        if step.message and step.reason not in _SILENT and not self._repeats(step):
            self._out.paragraph(step.message, indent=6)

    def _repeats(self, step: Step) -> bool:
        """Whether it only says again what the step says that it is about."""
        others = [other for other in self._answer.steps if other.type != step.type and other.message]
        return step.type == ConditionType.BOUND and any(
            step.message in (f"{other.type}: {other.message}", f"{other.type} {other.message}")
            for other in others
        )

    def _groups(self) -> None:
        decision = self._answer.decision
        if decision is None or not decision.groups:
            return
        self._title("Shared GPUs")
        for group in decision.groups:
            mode = f" ({group.mode})" if group.mode else ""
            self._field("group", f"{group.name}{mode}")
            self._out.paragraph(_reservation(group), indent=4, hang=2)
        others = self._answer.others
        for other in others[:_MOST_OTHERS]:
            phase = other.phase or "not bound yet"
            portion = f", {other.portion} of it" if other.portion else ""
            self._field(f"other of {other.group}", f"pod {other.namespace}/{other.pod}{portion}, {phase}")
        if len(others) > _MOST_OTHERS:
            self._out.paragraph(f"and {len(others) - _MOST_OTHERS} more", indent=2)

    def _pod(self) -> None:
        pod = self._answer.pod
        if not pod.exists:
            return
        self._title("Pod")
        self._field("phase", "being deleted" if pod.is_deleting else pod.phase)
        self._field("node", pod.node or "none")
        self._field("scheduler", pod.scheduler)
        for line in pod.lines:
            self._out.paragraph(line, indent=2, hang=2)
        for claim in self._answer.claims:
            style = {True: Style.GOOD, False: Style.BAD}.get(claim.is_ready is True, Style.PLAIN)
            self._field(
                f"{claim.kind} {claim.name}", claim.state, Style.PLAIN if claim.is_ready is None else style
            )

    def _events(self) -> None:
        events = self._answer.events
        if not events:
            return
        self._title("Events, newest last")
        if len(events) > _MOST_EVENTS:
            self._out.paragraph(f"({len(events) - _MOST_EVENTS} older ones are left out)", indent=2)
        for event in events[-_MOST_EVENTS:]:
            last = age(event.last, self._now)
            times = f", {event.count} times" if event.count > 1 else ""
            style = Style.BAD if event.kind == "Warning" else Style.PLAIN
            when = f"{last} ago{times}, " if last else ""
            self._out.paragraph(
                (event.reason, style), f" ({when}{event.about}): {event.message}", indent=2, hang=2
            )

    def _advice(self) -> None:
        if not self._answer.advice:
            return
        self._title("What to do")
        for advice in self._answer.advice:
            self._out.paragraph(
                (f"{advice.about}, {advice.reason}: ", Style.TITLE), advice.means, indent=2, hang=2
            )
            for number, step in enumerate(advice.steps, start=1):
                self._out.paragraph(f"{number}. {step}", indent=4, hang=3)
        if self._answer.then:
            self._out.paragraph(self._answer.then, indent=2)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _gives(decision: Decision) -> str:
    if not decision.type and decision.gpu_count is None:
        return ""
    kind = decision.type or "Regular"
    if decision.gpu_count is None and decision.type != "Fraction":
        return f"{kind}, no GPU"
    count = (
        f"{decision.gpu_count} GPU{'s' if decision.gpu_count != 1 else ''}" if decision.gpu_count else "GPUs"
    )
    portion = f"{decision.gpu_portion or 'an unknown share'} of " if decision.type == "Fraction" else ""
    compute = f", compute {decision.compute_portion}" if decision.compute_portion else ""
    return f"{kind}, {portion}{count}{compute}"


def _reservation(group: Group) -> str:
    if not group.is_known:
        return "its reservation may not be read"
    if not group.reservation:
        return "no reservation pod"
    text = f"reservation pod {group.reservation} on {group.node or 'no node'}: {group.phase}"
    text += f", device {group.device}" if group.device else ", has reported no GPU"
    if group.reserved_mode and group.mode and group.reserved_mode != group.mode:
        text += f", reserved for {group.reserved_mode}"
    return f"{text}; {group.hindrances}" if group.hindrances else text
