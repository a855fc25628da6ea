"""How fast pods are bound, and what a bind costs."""

import json
import ssl
import statistics
import threading
import time
import urllib.request
from collections.abc import Sequence

from kubelet import Kubelet

from benchmark.bench import Bench
from benchmark.binder import NO_LIMIT, TIMEOUT_S, cpu_s
from benchmark.objects import PODS, REQUESTS, bind_request
from benchmark.quota import QuotaError, quota

OPERATOR_LIMITS = ("--qps=20", "--burst=100")
"""What KAI's operator passes."""
OPERATOR_CPUS = 0.1
"""What KAI's operator allows."""


def burst(bench: Bench) -> None:
    """400 pods without a GPU: binds/s, CPU, memory and requests of each."""
    _burst(bench, "burst of CPU binds", 400)


def shared(bench: Bench) -> None:
    """200 pods that share GPUs, two a group."""
    with Kubelet(bench.plane):
        _burst(bench, "burst of shared-GPU binds, two pods a group", 200, per_group=2)


def limited(bench: Bench) -> None:
    """300 pods without a GPU, under the rate limit that KAI's operator sets."""
    _burst(bench, f"burst with {' '.join(OPERATOR_LIMITS)}", 300, flags=OPERATOR_LIMITS)


def _burst(
    bench: Bench, title: str, count: int, *, per_group: int = 0, flags: Sequence[str] = NO_LIMIT
) -> None:
    """All requests are there when the binder starts."""
    bench.clear()
    bench.decide(bench.pods(count, per_group=per_group))
    server = bench.plane.pids["kube-apiserver"]
    server_s = cpu_s(server)
    started_s = time.monotonic()
    with bench.binder(flags) as binder:
        binder.wait_finished(1)
        first_s, first = time.monotonic(), binder.finished()
        binder.wait_finished(count)
        ended_s = time.monotonic()
        time.sleep(1.0)  # events are written behind the work
        used_s, peak_mib, sent = binder.cpu_s(), binder.memory_mib(), binder.sent()
    server_ms = (cpu_s(server) - server_s) / count * 1000
    print(f"\n{title}: {count} binds")
    print(f"  start to first bind   {first_s - started_s:6.2f} s")
    print(f"  binds/s               {(count - first) / (ended_s - first_s):6.1f}")
    print(
        f"  CPU per bind          {used_s / count * 1000:6.2f} ms binder (start included), "
        f"{server_ms:.1f} ms API server"
    )
    print(f"  peak memory           {peak_mib:6.1f} MiB")
    methods = ", ".join(f"{method} {number}" for method, number in sorted(sent.items()))
    per_bind = sum(sent.values()) / count
    print(f"  requests per bind     {per_bind:6.2f}, lists and watches included: {methods}")


def latency(bench: Bench, *, rate: float = 10.0, seconds: float = 20.0) -> None:
    """From a request's creation to the pod's assignment, at a steady rate."""
    bench.clear()
    count = int(rate * seconds)
    pods = bench.pods(count)
    created: dict[str, float] = {}
    assigned: dict[str, float] = {}
    stop = threading.Event()
    with bench.binder() as binder:
        binder.wait_answers()
        watcher = threading.Thread(target=_watch_assigned, args=(bench, assigned, stop), daemon=True)
        watcher.start()
        time.sleep(0.5)
        begin_s = time.monotonic()
        for number, (name, (uid, _)) in enumerate(pods.items()):
            time.sleep(max(0.0, begin_s + number / rate - time.monotonic()))
            bench.plane.request("POST", REQUESTS, bind_request(name, uid))
            created[name] = time.monotonic()
        binder.wait_finished(count)
        time.sleep(0.5)
    stop.set()
    delays = sorted((assigned[name] - created[name]) * 1000 for name in created if name in assigned)
    p99 = delays[int(len(delays) * 0.99)]
    print(f"\nlatency at {rate:g}/s, answer to the creation -> assignment seen: {len(delays)} pods")
    print(f"  p50 {statistics.median(delays):.1f} ms, p99 {p99:.1f} ms")


def _watch_assigned(bench: Bench, assigned: dict[str, float], stop: threading.Event) -> None:
    """Notes when each pod is seen on a node."""
    path = f"{PODS}?watch=true&timeoutSeconds=120&resourceVersion=0"
    headers = {"Authorization": f"Bearer {bench.plane.admin_token}"}
    request = urllib.request.Request(bench.plane.url + path, headers=headers)  # noqa: S310 -- ours
    context = ssl.create_default_context(cafile=str(bench.plane.ca_file))
    with urllib.request.urlopen(request, context=context, timeout=120) as stream:  # noqa: S310
        for line in stream:
            if stop.is_set():
                return
            item = json.loads(line)["object"]
            if item["spec"].get("nodeName"):
                assigned.setdefault(item["metadata"]["name"], time.monotonic())


def start_under_quota(bench: Bench, *, runs: int = 5) -> None:
    """From the start to the first answer and the first bind, with the CPU that KAI's operator allows."""
    print(f"\nstart with {OPERATOR_CPUS:g} CPU and {' '.join(OPERATOR_LIMITS)}, {runs} runs")
    answers, binds, used = [], [], []
    try:
        for _ in range(runs):
            bench.clear()
            pods = bench.pods(1)
            bench.decide(pods)
            (name,) = pods
            with quota(OPERATOR_CPUS) as limit:
                started_s = time.monotonic()
                with bench.binder(OPERATOR_LIMITS, limit.prefix) as binder:
                    binder.wait_answers("healthz")
                    answers.append(time.monotonic() - started_s)
                    while bench.phase(name) != "Succeeded":
                        if time.monotonic() - started_s > TIMEOUT_S:
                            raise SystemExit(f"nothing is bound; see {binder.log}")
                        time.sleep(0.05)
                    binds.append(time.monotonic() - started_s)
                    used.append(binder.cpu_s())
    except QuotaError as error:
        print(f"  cannot be measured here: {error}")
        return
    rows = {"first answer of /healthz": answers, "first bind": binds, "CPU until then": used}
    for title, figures in rows.items():
        print(f"  {title:<25}{statistics.median(figures):6.2f} s  ({min(figures):.2f} to {max(figures):.2f})")
    print(f"  quota by {limit.how}")
