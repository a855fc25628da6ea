"""How fast pods are bound, and what a bind costs."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator, Sequence

from kubelet import Kubelet

from benchmark.bench import Bench, Pods
from benchmark.binder import NO_LIMIT, Binder, UnfinishedError, cpu_s
from benchmark.figures import Figure, quantile
from benchmark.objects import REQUESTS, bind_request
from benchmark.quota import Quota, QuotaError, quota
from benchmark.watching import Assignments, Endings

OPERATOR_LIMITS = ("--qps=20", "--burst=100")
"""What KAI's operator passes."""
OPERATOR_CPUS = 0.1
"""What KAI's operator allows."""


def burst(bench: Bench) -> list[Figure]:
    """400 pods without a GPU, no rate limit."""
    return ended_burst(bench, bench.pods(400))


def shared(bench: Bench) -> list[Figure]:
    """200 pods that share GPUs, two a group, no rate limit."""
    with Kubelet(bench.plane):
        return ended_burst(bench, bench.pods(200, per_group=2))


def limited(bench: Bench) -> list[Figure]:
    """300 pods without a GPU, with the flags that KAI's operator passes."""
    return ended_burst(bench, bench.pods(300), OPERATOR_LIMITS)


def throttled(bench: Bench) -> list[Figure]:
    """100 pods without a GPU, with the operator's flags and the tenth of a CPU that it allows.

    Raises:
        UnfinishedError: This machine lets us set no quota.
    """
    with _quota() as limit:
        return ended_burst(bench, bench.pods(100), OPERATOR_LIMITS, limit.prefix)


@contextlib.contextmanager
def _quota() -> Iterator[Quota]:
    try:
        with quota(OPERATOR_CPUS) as limit:
            yield limit
    except QuotaError as error:
        raise UnfinishedError(f"this machine lets us set no quota of CPU: {error}") from error


def ended_burst(
    bench: Bench, pods: Pods, flags: Sequence[str] = NO_LIMIT, prefix: Sequence[str] = ()
) -> list[Figure]:
    """All requests are there when the binder starts; what it takes until they have ended."""
    bench.decide(pods)
    count, server, at_first_s = len(pods), bench.plane.pids["kube-apiserver"], list[float]()
    started_s, server_s = time.monotonic(), cpu_s(server)
    with (
        bench.binder(flags, prefix) as binder,
        Endings(bench.plane, lambda: at_first_s.append(binder.cpu_s())) as endings,
    ):
        binder.wait_ended(endings, count)
        binder.wait_settled()
        used_s, peak_mib = binder.cpu_s(), binder.memory_mib()
        server_ms = (cpu_s(server) - server_s) / count * 1000
        sent = binder.sent()
    moments_s = sorted(endings.ended_s.values())
    took_s = moments_s[-1] - moments_s[0]
    return [
        Figure("start to first bind", moments_s[0] - started_s, "s"),
        Figure("CPU until the first bind", at_first_s[0], "s"),
        *([Figure("binds/s", (count - 1) / took_s)] if took_s else []),
        Figure("CPU per bind, start included", used_s / count * 1000, "ms"),
        Figure("CPU per bind after the first", (used_s - at_first_s[0]) / (count - 1) * 1000, "ms"),
        Figure("CPU of the API server per bind", server_ms, "ms"),
        Figure("peak memory", peak_mib, "MiB"),
        Figure("requests per bind", sum(sent.values()) / count),
        *(Figure(f"  {method}", number / count) for method, number in sorted(sent.items())),
    ]


def latency(bench: Bench) -> list[Figure]:
    """From a request's creation to the pod's assignment, at 10/s."""
    with bench.warm_binder():
        delays_ms = steady(bench)
    return [
        Figure("assigned after, p50", statistics.median(delays_ms), "ms"),
        Figure("assigned after, p99", quantile(delays_ms, 0.99), "ms"),
    ]


def steady(bench: Bench, *, rate: float = 10.0, seconds: float = 20.0) -> list[float]:
    """Creates requests at a steady rate; milliseconds from the answer to each until its pod is assigned."""
    pods = bench.pods(int(rate * seconds))
    created_s: dict[str, float] = {}
    with Assignments(bench.plane) as assigned:
        time.sleep(0.5)
        begin_s = time.monotonic()
        for number, (name, (uid, _)) in enumerate(pods.items()):
            time.sleep(max(0.0, begin_s + number / rate - time.monotonic()))
            bench.plane.request("POST", REQUESTS, bind_request(name, uid))
            created_s[name] = time.monotonic()
        deadline_s = time.monotonic() + 30.0
        while not assigned.seen_s.keys() >= pods.keys():
            if time.monotonic() > deadline_s:
                raise UnfinishedError(f"{len(pods.keys() - assigned.seen_s.keys())} pods were not assigned")
            time.sleep(0.05)
    return [(assigned.seen_s[name] - created_s[name]) * 1000 for name in pods]


FAILING = 50
NO_LIMIT_OFTEN = (*NO_LIMIT, "--rate-limiter-max-delay=1")


def failing(bench: Bench) -> list[Figure]:
    """Fresh requests at 10/s beside 50 that fail again and again: by the usual back-off, or once a second."""
    with bench.warm_binder() as binder:
        alone_ms = steady(bench)
        _fail(bench, binder)
        beside_ms = steady(bench)
    bench.clear()
    with bench.warm_binder(NO_LIMIT_OFTEN) as binder:
        used_s, sent = _fail(bench, binder)
        often_ms = steady(bench)
    return [
        Figure("p99 alone", quantile(alone_ms, 0.99), "ms"),
        Figure("p99 beside those that fail", quantile(beside_ms, 0.99), "ms"),
        Figure("p50 beside, to p50 alone", statistics.median(beside_ms) / statistics.median(alone_ms), "x"),
        Figure("p99 beside, to p99 alone", quantile(beside_ms, 0.99) / quantile(alone_ms, 0.99), "x"),
        Figure("once a second each: p99 beside", quantile(often_ms, 0.99), "ms"),
        Figure("once a second each: CPU for those that fail", used_s / 10 * 1000, "ms/s"),
        Figure("once a second each: requests for those that fail", sent / 10, "1/s"),
    ]


def _fail(bench: Bench, binder: Binder) -> tuple[float, int]:
    """Makes requests that fail for want of a claim; CPU and requests of ten seconds, a little later."""
    pods = bench.pods(FAILING, claims=["there-is-no-such-claim"])
    bench.create(REQUESTS, (bind_request(name, uid, attempts=1_000_000) for name, (uid, _) in pods.items()))
    time.sleep(10.0)
    before_s, before = binder.cpu_s(), binder.sent()
    time.sleep(10.0)
    return binder.cpu_s() - before_s, (binder.sent() - before).total()


def idle(bench: Bench) -> list[Figure]:
    """A minute without anything to do, beside 100 pods that are bound."""
    figures = []
    elected = ("--leader-elect", "--leader-election-namespace=kai-scheduler")
    pods = bench.pods(100)
    bench.decide(pods)
    for what, flags in (("", ()), (", with a lease", elected)):
        if flags and not bench.subject.is_ours:
            continue  # KAI's cannot be told where its lease is to be
        with bench.binder(flags) as binder, Endings(bench.plane) as endings:
            binder.wait_ended(endings, len(pods))
            binder.wait_settled()
            before_s, before = binder.cpu_s(), binder.sent()
            time.sleep(60.0)
            used_s, sent = binder.cpu_s() - before_s, binder.sent() - before
            figures += [
                Figure(f"CPU in a minute{what}", used_s * 1000, "ms"),
                Figure(f"requests in a minute{what}", sum(sent.values())),
                Figure(f"memory{what}", binder.memory_mib("VmRSS"), "MiB"),
            ]
    return figures


def start_under_quota(bench: Bench) -> list[Figure]:
    """From the start to the first answer and the first bind, with the CPU that KAI's operator allows.

    Raises:
        UnfinishedError: This machine lets us set no quota.
    """
    pods = bench.pods(1)
    bench.decide(pods)
    with _quota() as limit:
        started_s, at_first_s = time.monotonic(), list[float]()
        with (
            bench.binder(OPERATOR_LIMITS, limit.prefix) as binder,
            Endings(bench.plane, lambda: at_first_s.append(binder.cpu_s())) as endings,
        ):
            binder.wait_answers("healthz")
            answered_s = time.monotonic() - started_s
            binder.wait_ended(endings, 1)
            bound_s = min(endings.ended_s.values()) - started_s
    return [
        Figure("start to first answer of /healthz", answered_s, "s"),
        Figure("start to first bind", bound_s, "s"),
        Figure("CPU until the first bind", at_first_s[0], "s"),
    ]
