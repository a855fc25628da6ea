"""What no burst shows: fresh requests beside those that fail or wait, and what is left after many."""

from __future__ import annotations

import json
import ssl
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from benchmark.bench import Bench
from benchmark.binder import NO_LIMIT, TIMEOUT_S
from benchmark.objects import CLASSES, PODS, REQUESTS, bind_request, storage_class

FAILING, WAITING = 50, 20
RATE, SECONDS = 10.0, 60.0
WAVE = 200


def fairness(bench: Bench, *, rounds: int = 2) -> None:
    """p50 and p99 of fresh requests at 10/s, alone and beside 50 that fail and 20 that wait, by turns."""
    storage = "bench-waits-for-ever"
    bench.plane.request("POST", CLASSES, storage_class(storage, provisioner="example.com/none"))
    print(
        f"\nfresh requests at {RATE:g}/s for {SECONDS:g} s, and {FAILING} that fail and {WAITING} that wait"
    )
    ratios = []
    for _ in range(rounds):
        alone, beside = _delays_ms(bench, ""), _delays_ms(bench, storage)
        ratios.append(_p99(beside) / _p99(alone))
        for title, delays in (("alone", alone), ("beside", beside)):
            print(f"  {title:<8}p50 {statistics.median(delays):6.1f} ms  p99 {_p99(delays):6.1f} ms")
    print(f"  p99 beside / alone    {', '.join(f'{ratio:.2f}' for ratio in ratios)}")


def _p99(delays: list[float]) -> float:
    return sorted(delays)[int(len(delays) * 0.99)]


def _delays_ms(bench: Bench, storage: str) -> list[float]:
    """From a request's creation to its pod's node; beside others, if there is a storage class."""
    bench.clear()
    pods = bench.pods(int(RATE * SECONDS))
    created: dict[str, float] = {}
    with bench.binder() as binder:
        binder.wait_answers()
        if storage:
            failing = bench.pods(FAILING)
            bodies = [bind_request(name, uid) for name, (uid, _) in failing.items()]
            for body in bodies:
                body["spec"] |= {"selectedNode": "no-such-node", "backoffLimit": 1000}
            bench.create(REQUESTS, bodies)
            bench.pods_that_wait(WAITING, storage)
            time.sleep(1.0)
        with _watched(bench) as assigned:
            began_s = time.monotonic()
            for number, (name, (uid, _)) in enumerate(pods.items()):
                time.sleep(max(0.0, began_s + number / RATE - time.monotonic()))
                bench.plane.request("POST", REQUESTS, bind_request(name, uid))
                created[name] = time.monotonic()
            deadline_s = time.monotonic() + TIMEOUT_S
            while not created.keys() <= assigned.keys():
                if time.monotonic() > deadline_s:
                    raise SystemExit(f"only {len(assigned)} pods are bound; see {binder.log}")
                time.sleep(0.05)
    return [(assigned[name] - since_s) * 1000 for name, since_s in created.items()]


@contextmanager
def _watched(bench: Bench) -> Iterator[dict[str, float]]:
    """When each pod was seen on a node."""
    assigned: dict[str, float] = {}
    stop = threading.Event()

    def watch() -> None:
        path = f"{PODS}?watch=true&timeoutSeconds=600&resourceVersion=0"
        headers = {"Authorization": f"Bearer {bench.plane.admin_token}"}
        request = urllib.request.Request(bench.plane.url + path, headers=headers)  # noqa: S310 -- ours
        context = ssl.create_default_context(cafile=str(bench.plane.ca_file))
        with urllib.request.urlopen(request, context=context, timeout=600) as stream:  # noqa: S310
            for line in stream:
                if stop.is_set():
                    return
                item = json.loads(line)["object"]
                if item["spec"].get("nodeName"):
                    assigned.setdefault(item["metadata"]["name"], time.monotonic())

    threading.Thread(target=watch, daemon=True).start()
    time.sleep(0.5)
    yield assigned
    stop.set()


def endurance(bench: Bench, *, count: int = 20_000, rows: int = 10) -> None:
    """Memory and descriptors after each tenth of 20,000 requests that are bound and deleted."""
    bench.clear()
    print(f"\n{count} requests that come and go, {WAVE} at a time")
    with bench.binder(NO_LIMIT) as binder:
        binder.wait_answers()
        done = 0
        for row in range(1, rows + 1):
            while done < count * row // rows:
                bench.decide(bench.pods(WAVE))
                done += WAVE
                binder.wait_finished(done)
                bench.clear()
            time.sleep(1.0)
            print(
                f"  {done:6} bound  {binder.memory_mib('VmRSS'):6.1f} MiB  {binder.files():3} descriptors  "
                f"{binder.cpu_s() / done * 1000:.2f} ms CPU each",
                flush=True,
            )
