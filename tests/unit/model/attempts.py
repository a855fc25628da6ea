"""Attempts to bind one pod: binder, scheduler and people, each step between two reads or writes of its own.

What the binder decides is its real code (`Rules`); what is between is here: the server's few rules, caches
that lag, a binder that is killed at any moment or followed by a standby, answers that are lost. The scheduler
goes by B-13, written down here once more, in its own words.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import NamedTuple

import orjson
from msgspec.structs import replace

from controller.binder import status as statuses
from controller.binder.decisions import judged_after, leaves_it_open, must_be_confirmed, why_obsolete
from controller.binder.patches import bare, json_patch, refreshed
from controller.binder.reconciler import keys_to_bind
from controller.binder.status import Report, Standing
from controller.kai.outcome import Ending, Failed, Ready, failed_by
from controller.kai.pods import judge_pod
from controller.kai.reasons import Reason
from controller.kai.request import BindRequest, is_over
from controller.runtime import errors
from controller.runtime.cache import Change, Key
from controller.runtime.client import Object
from controller.runtime.workqueue import Backoff
from tests.jsonpatch import applied
from tests.unit.model.explorer import Step

NOW = datetime(2026, 1, 1, tzinfo=UTC)
READY = "ready"
ORDER = ("GPUSharing",)
BACKOFF = Backoff()


class Request(NamedTuple):
    """A BindRequest; its status as JSON, which tells all of it and can be compared."""

    uid: int
    node: str
    owner: int
    generation: int = 1
    limit: int | None = None
    status: str = ""

    def __str__(self) -> str:
        told = orjson.loads(self.status) if self.status else {}
        status = f"{told.get('phase')} {told.get('failedAttempts', 0)} of {self.limit}" if told else "new"
        return f"request {self.uid}.{self.generation} to {self.node} for pod {self.owner} ({status})"


class Pod(NamedTuple):
    uid: int
    node: str = ""


class Work(NamedTuple):
    """An attempt under way: `at` says what comes next, `verdict` is a failure, READY or nothing yet."""

    request: Request
    at: str = "look"
    pod: Pod | None = None
    verdict: Failed | str = ""
    status: str = ""
    reread: Request | None = None
    refusals: int = 0
    delay: bool = False

    def __str__(self) -> str:
        verdict = self.verdict.reason if isinstance(self.verdict, Failed) else self.verdict
        return f"{self.at}{verdict and ', ' + verdict}, for {self.request}"


class Budget(NamedTuple):
    """How often what is left to chance or to people may still happen."""

    requests: int = 2
    crashes: int = 1
    standbys: int = 1
    pods: int = 1
    edits: int = 1
    withdrawals: int = 1
    lost: int = 1
    away: int = 1


class State(NamedTuple):
    """The world.

    Attributes:
        request: On the server.
        pod: Likewise.
        seen: The request in the cache.
        seen_pod: The pod in the cache.
        standby: The request in the cache of a standby.
        behind: Whether the cache may lack what the leader before has written.
        queue: idle, ready, delayed; or, while there is work, whether it is ready again.
        work: The attempt under way.
        bound: Whether the pod of the present request was on its node since the request is there.
        ended: Attempts of the present request and spec that have failed, killed ones left out.
        left: What may still happen.
    """

    request: Request | None = None
    pod: Pod | None = Pod(1)
    seen: Request | None = None
    seen_pod: Pod | None = None
    standby: Request | None = None
    behind: bool = False
    queue: str = "idle"
    work: Work | None = None
    bound: bool = False
    ended: int = 0
    left: Budget = Budget()


@cache
def item_of(request: Request) -> Object:
    """The request as an object of the server; not to be changed."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": f"pod-{request.owner}"}
    spec: Object = {"podName": "a", "selectedNode": request.node, "receivedResourceType": "Regular"}
    if request.limit is not None:
        spec["backoffLimit"] = request.limit
    metadata = {"name": "a", "namespace": "ns", "uid": f"request-{request.uid}"}
    item: Object = {
        "metadata": {**metadata, "generation": request.generation, "ownerReferences": [owner]},
        "spec": spec,
    }
    return item if not request.status else {**item, "status": orjson.loads(request.status)}


def maybe_item(request: Request | None) -> Object | None:
    return None if request is None else item_of(request)


@cache
def object_of(pod: Pod) -> Object:
    """The pod, likewise."""
    metadata = {"name": "a", "namespace": "ns", "uid": f"pod-{pod.uid}"}
    return {"metadata": metadata, "spec": {"nodeName": pod.node} if pod.node else {}, "status": {}}


def failed_for_good(request: Request) -> bool:
    """B-13, as the scheduler reads a request."""
    status = item_of(request).get("status") or {}
    attempts = status.get("failedAttempts", 0)
    return status.get("phase") == "Failed" and (request.limit is None or attempts >= request.limit)


def patched(request: Request, patch: list[Object]) -> Request | None:
    """What the server makes of a JSON patch of the status; None if a test in it fails (422)."""
    item = applied(item_of(request), patch)
    if item is None:
        return None
    status = orjson.dumps(item.get("status"), option=orjson.OPT_SORT_KEYS).decode()
    return request._replace(status=status)


Judge = Callable[[BindRequest, Object, str | None], Ready | Failed | None]


@dataclass(frozen=True)
class Rules:
    """What the binder decides by; a mutant has another one of these."""

    keys: Callable[[Change], Iterable[Key]] = keys_to_bind
    over: Callable[[Object], bool] = is_over
    judge: Judge = judge_pod
    obsolete: Callable[[Object, Object | None], Failed | None] = why_obsolete
    confirmed: Callable[[BindRequest, Ready | Failed | None], bool] = must_be_confirmed
    open: Callable[[errors.ApiError], bool] = leaves_it_open
    report: Callable[[BindRequest, Standing, Ending, datetime, Backoff], Report] = statuses.report
    patch: Callable[[Object, Object], list[Object]] = json_patch
    looks_after_election: bool = True
    binds_by_uid: bool = True


class Attempts:
    """The model."""

    def __init__(self, limit: int | None, left: Budget, rules: Rules | None = None) -> None:
        self.limit, self.left, self.rules = limit, left, rules or Rules()

    def first(self) -> list[State]:
        return [State(left=self.left)]

    def is_end(self, state: State) -> bool:
        over = state.request is None or _phase(state.request) == "Succeeded"
        return over and state.queue == "idle" and state.work is None and state.seen == state.request

    def wrong(self, state: State) -> str:
        request, pod = state.request, state.pod
        if request is None:
            return ""
        status = item_of(request).get("status") or {}
        current = status.get("observedGeneration") == request.generation
        told = status.get("reason") or ""
        if current and told and not told.endswith(f"[{request.uid}.{request.generation}]"):
            return "the status tells of another request or spec"
        if current and status.get("failedAttempts", 0) > max(state.ended, request.limit or 1):
            return "an attempt was counted that was none"
        if request.limit is not None and current and _retried(status) > state.ended:
            return "an attempt was counted twice"
        if status.get("phase") == "Succeeded" and not state.bound:
            return "the status says that the pod is bound, and it never was"
        placed = pod is not None and pod.uid == request.owner and pod.node == request.node
        if placed and current and failed_for_good(request):
            return "the pod is on its node, and its request has failed for good"
        return ""

    # What others do.

    def steps(self, state: State) -> Iterator[Step[State]]:
        yield from self._scheduler(state)
        yield from self._people(state)
        yield from self._watches(state)
        yield from self._chance(state)
        if state.work is not None:
            yield from self._work(state, state.work)
        elif state.queue == "ready":
            yield self._take(state)
        elif state.queue == "delayed":
            yield Step("the delay is over", state._replace(queue="ready"))

    def _scheduler(self, state: State) -> Iterator[Step[State]]:
        request, pod, left = state.request, state.pod, state.left
        if request is None and pod is not None and not pod.node and left.requests:
            number = self.left.requests - left.requests + 1
            made = Request(number, f"n{number}", pod.uid, limit=self.limit)
            less = left._replace(requests=left.requests - 1)
            yield Step("the scheduler asks", state._replace(request=made, bound=False, ended=0, left=less))
        if request is None:
            return
        gone = state._replace(request=None, ended=0)
        if failed_for_good(request):
            yield Step("the scheduler deletes what failed for good", gone)
        if pod is None or pod.uid != request.owner:
            yield Step("the garbage collector deletes the request", gone)
        elif left.withdrawals and not pod.node:
            less = left._replace(withdrawals=left.withdrawals - 1)
            yield Step("the scheduler deletes the request", gone._replace(left=less), is_fault=True)

    def _people(self, state: State) -> Iterator[Step[State]]:
        request, pod, left = state.request, state.pod, state.left
        if pod is not None and left.pods:
            less, made = left._replace(pods=left.pods - 1), Pod(pod.uid + 1)
            yield Step("the pod is replaced", state._replace(pod=made, left=less), is_fault=True)
        if request is not None and left.edits:
            less = left._replace(edits=left.edits - 1)
            edited = request._replace(generation=request.generation + 1, node="n9")
            after = state._replace(request=edited, ended=0, left=less)
            yield Step("the spec is mended", after, is_fault=True)

    def _watches(self, state: State) -> Iterator[Step[State]]:
        if state.seen_pod != state.pod:
            yield Step("the cache sees the pod", state._replace(seen_pod=state.pod))
        if state.left.standbys and state.standby != state.request:
            yield Step("the standby's cache sees the request", state._replace(standby=state.request))
        if state.seen != state.request or state.behind:
            told = _told_of(state._replace(behind=False), state.seen, state.request, self.rules)
            cut = told.queue == "ready" and state.queue == "delayed"
            seen, live = state.seen, state.request
            same = seen is not None and live is not None and _identity(seen) == _identity(live)
            wrong = "a write of its own cut a back-off short" if cut and same else ""
            yield Step("the cache sees the request", told, wrong=wrong)

    def _chance(self, state: State) -> Iterator[Step[State]]:
        left, fresh = state.left, state._replace(work=None, queue="idle")
        if left.crashes:
            less = left._replace(crashes=left.crashes - 1)
            seen = fresh._replace(seen=None, seen_pod=state.pod, behind=False, left=less)
            after = _told_of(seen, None, state.request, self.rules)
            yield Step("the binder is killed and starts", after, is_fault=True)
        if left.standbys:
            less = left._replace(standbys=left.standbys - 1)
            after = fresh._replace(seen=None, behind=True, left=less, standby=None)
            after = _told_of(after, None, state.standby, self.rules)
            yield Step("the binder is killed and a standby leads", after, is_fault=True)

    # What the binder does.

    def _take(self, state: State) -> Step[State]:
        seen = state.seen
        name = "a worker takes the key"
        if state.behind and self.rules.looks_after_election and seen is not None:
            live = state.request
            seen = live if live is not None and live.uid == seen.uid else None
            state = state._replace(seen=seen or state.seen)  # the answer goes into the cache
            name += " and looks live"
        if seen is None or self.rules.over(item_of(seen)):
            return Step(name, state._replace(queue="idle"))
        return Step(name, state._replace(queue="idle", work=Work(seen)))

    def _work(self, state: State, work: Work) -> Iterator[Step[State]]:
        match work.at:
            case "look":
                yield self._look(state, work)
            case "plugins":
                yield from self._plugins(state, work)
            case "bind":
                yield from self._bind(state, work)
            case "resolve" | "resolve a loss" | "resolve an error":
                yield self._resolve(state, work)
            case "failed":
                yield self._present(state, work)
            case "report":
                yield self._report(state, work)
            case "write":
                yield from self._write(state, work)
            case "read again":
                yield self._read_again(state, work)

    def _look(self, state: State, work: Work) -> Step[State]:
        """`_find_pod`: the cache, and a live look where its word is not enough."""
        asked = BindRequest.parse(item_of(work.request))
        pod = state.seen_pod
        verdict = self.rules.judge(asked, object_of(pod), asked.owner_uid) if pod else None
        if pod is None or self.rules.confirmed(asked, verdict):
            pod = state.pod
            verdict = self.rules.judge(asked, object_of(pod), asked.owner_uid) if pod else _no_pod(work)
        at = "plugins" if verdict is None else "report"
        return _at(state, work, at, pod=pod, verdict=_kept(verdict, work))

    def _plugins(self, state: State, work: Work) -> Iterator[Step[State]]:
        for text, reason in (("fails", Reason.REJECTED), ("fails for good", Reason.INVALID_REQUEST)):
            failure = _tagged(Failed(reason, "no", retry=reason == Reason.REJECTED), work)
            yield _at(state, work, "failed", f"a plugin {text}", verdict=failure, is_fault=True)
        obsolete = self.rules.obsolete(item_of(work.request), maybe_item(state.seen))
        if obsolete is not None:
            yield _at(state, work, "failed", "it is obsolete", verdict=_tagged(obsolete, work))
        else:
            yield _at(state, work, "bind", "all plugins are content")
        if state.left.away:
            less = state.left._replace(away=state.left.away - 1)
            queue = "ready" if state.queue == "ready" else "delayed"
            after = state._replace(work=None, queue=queue, left=less)
            yield Step("the server is away", after, is_fault=True)

    def _bind(self, state: State, work: Work) -> Iterator[Step[State]]:
        present, wanted = state.pod, work.pod
        assert wanted is not None
        accepted = present is not None and not present.node
        accepted = accepted and (present == wanted or not self.rules.binds_by_uid)
        wrong = ""
        if accepted and present is not None:
            wrong = "another pod was bound" if present.uid != work.request.owner else ""
            live = state.request
            bound = live is not None and (live.uid, live.owner) == (work.request.uid, present.uid)
            state = state._replace(pod=present._replace(node=work.request.node), bound=state.bound or bound)
            yield _at(state, work, "report", "the pod is bound", verdict=READY)._replace(wrong=wrong)
        else:
            yield _at(state, work, "resolve", "the Binding is refused")
        if state.left.lost:
            state = state._replace(left=state.left._replace(lost=state.left.lost - 1))
            yield _at(state, work, "resolve a loss", "the answer to the Binding is lost", is_fault=True)
            yield _at(state, work, "resolve an error", "the Binding is answered with 500", is_fault=True)

    def _resolve(self, state: State, work: Work) -> Step[State]:
        assert work.pod is not None
        asked, pod = BindRequest.parse(item_of(work.request)), state.pod
        error: errors.ApiError = errors.NoAnswerError("POST binding", "lost")
        if work.at != "resolve a loss":
            code = 500 if work.at == "resolve an error" else 409 if pod else 404
            error = errors.from_status("POST binding", code, {}, "no")
        if self.rules.open(error):
            found = object_of(pod) if pod else None
            verdict = judged_after(error, asked, found, f"pod-{work.pod.uid}")
        else:
            verdict = None if error.transient else failed_by(error)
        if verdict is None:
            return Step("it was not bound", state._replace(work=None, queue="delayed"))
        return _at(state, work, "report", "the pod is looked at", verdict=_kept(verdict, work))

    def _present(self, state: State, work: Work) -> Step[State]:
        """`_present`: a pod that got to its node all the same is not undone."""
        asked = BindRequest.parse(item_of(work.request))
        pod = state.pod
        if pod is not None and isinstance(self.rules.judge(asked, object_of(pod), asked.owner_uid), Ready):
            return _at(state, work, "report", "it is on its node", verdict=READY)
        return _at(state, work, "report", "it is on no node")

    def _report(self, state: State, work: Work) -> Step[State]:
        item, latest = item_of(work.request), state.seen
        latest = latest if latest is not None and latest.uid == work.request.uid else work.request
        ending = Ending(ORDER, {}, work.verdict if isinstance(work.verdict, Failed) else Ready("bound"))
        standing = Standing.of(item, item_of(latest))
        report = self.rules.report(BindRequest.parse(item), standing, ending, NOW, BACKOFF)
        status = orjson.dumps(report.status).decode()
        delay = report.result.requeue_after_s is not None
        live = state.request
        same = live is not None and _identity(live) == _identity(work.request)
        ended = state.ended + (same and isinstance(work.verdict, Failed))
        return _at(state._replace(ended=ended), work, "write", status=status, delay=delay)

    def _write(self, state: State, work: Work) -> Iterator[Step[State]]:
        latest = state.seen
        latest = latest if latest is not None and latest.uid == work.request.uid else work.request
        latest = work.reread or latest
        live = state.request
        if live is None:
            yield self._done(state, work, "the request is gone", stored=False)
            return
        after = patched(live, self.rules.patch(item_of(latest), orjson.loads(work.status)))
        if after is None:
            yield _at(state, work, "read again", "the status is refused", refusals=work.refusals + 1)
            return
        wrong = _forgotten(_status(live), _status(after))
        stored = state._replace(request=after)
        if state.left.lost:
            less = state.left._replace(lost=state.left.lost - 1)
            yield Step("the answer to the status is lost", stored._replace(left=less), True, wrong)
        seen = state.seen
        if seen is not None and seen.uid == after.uid:
            stored = _told_of(stored, seen, after, self.rules)
        done = self._done(stored, work, "the status is stored", stored=True)
        yield done._replace(wrong=wrong or done.wrong)

    def _read_again(self, state: State, work: Work) -> Step[State]:
        live = state.request
        if live is None or live.uid != work.request.uid:
            return self._done(state, work, "the request is another one", stored=False)
        status = orjson.loads(work.status)
        status = refreshed(status, ORDER, item_of(live)) if work.refusals == 1 else bare(status)
        text = orjson.dumps(status).decode()
        return _at(state, work, "write", "it is read again", status=text, reread=live)

    def _done(self, state: State, work: Work, name: str, *, stored: bool) -> Step[State]:
        delayed = stored and work.delay
        same = state.seen is not None and _identity(state.seen) == _identity(work.request)
        cut = delayed and same and state.queue == "ready"
        queue = "delayed" if delayed and state.queue != "ready" else state.queue
        wrong = "a write of its own cut a back-off short" if cut else ""
        return Step(name, state._replace(work=None, queue=queue), wrong=wrong)


def _told_of(state: State, old: Request | None, new: Request | None, rules: Rules) -> State:
    """The cache shows the request so, and its key comes into the queue if the code says so."""
    state = state._replace(seen=new)
    if old is None and new is None:
        return state
    changes = [Change(maybe_item(old), maybe_item(new))]
    if old is not None and new is not None and old.uid != new.uid:
        changes = [Change(item_of(old), None), Change(None, item_of(new))]
    keys = [key for change in changes for key in rules.keys(change)]
    return state._replace(queue="ready") if keys else state


def _at(
    state: State, work: Work, at: str, name: str = "", *, is_fault: bool = False, **more: object
) -> Step[State]:
    after: Work = work._replace(at=at, **more)  # type: ignore[arg-type]
    return Step(name or f"the binder is at: {at}", state._replace(work=after), is_fault)


def _tagged(failure: Failed, work: Work) -> Failed:
    """The same, with what it was an attempt of."""
    return replace(failure, message=f"no [{work.request.uid}.{work.request.generation}]")


def _forgotten(old: Object, new: Object) -> str:
    """What a write took back that was known already, if anything."""
    generations = old.get("observedGeneration", 0), new.get("observedGeneration", 0)
    if generations[1] < generations[0]:
        return "the status of a newer spec was overwritten"
    same = generations[0] == generations[1] and new.get("phase") == "Failed"
    fewer = new.get("failedAttempts", 0) < old.get("failedAttempts", 0)
    return "attempts were forgotten" if same and fewer else ""


def _kept(verdict: Ready | Failed | None, work: Work) -> Failed | str:
    """A verdict as a state can have it."""
    if isinstance(verdict, Failed):
        return _tagged(verdict, work)
    return "" if verdict is None else READY


def _no_pod(work: Work) -> Failed:
    return _tagged(Failed(Reason.POD_NOT_FOUND, "no"), work)


def _identity(request: Request) -> tuple[int, int]:
    return request.uid, request.generation


def _status(request: Request) -> Object:
    status: Object = item_of(request).get("status") or {}
    return status


def _phase(request: Request) -> str:
    return str(_status(request).get("phase", ""))


def _retried(status: Object) -> int:
    """Failed attempts, so far as they are not a last word that fills up to the limit."""
    reason = str(status.get("reason") or "")
    return int(status.get("failedAttempts", 0)) if f"{Reason.REJECTED}:" in reason else 0
