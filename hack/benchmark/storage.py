"""What volumes cost: claims that are bound, one that a gang shares, many of a class, pods that wait."""

from __future__ import annotations

import re
import time

from benchmark.bench import Bench, Pods
from benchmark.binder import UnfinishedError
from benchmark.figures import Figure
from benchmark.objects import CLAIMS, CLASSES, NAMESPACE, SELECTED_NODE, VOLUMES, claim, storage_class, volume
from benchmark.watching import Endings

WAIT_S = 120.0
GANG = 64
VOLUMES_OF_CLASS = 10_000
ATTEMPTS = 10


def classes(bench: Bench) -> None:
    """Classes of volumes: two that are never provisioned, and two without a provisioner."""
    names = {"never": "never.example.com", "later": "later.example.com"}
    names |= dict.fromkeys(("one", "crowded"), "kubernetes.io/no-provisioner")
    present = {item["metadata"]["name"] for item in bench.plane.request("GET", CLASSES)["items"]}
    missing = {name: how for name, how in names.items() if name not in present}
    bench.create(CLASSES, (storage_class(name, provisioner=how) for name, how in missing.items()))


def waiting(bench: Bench, *, count: int = 200, waits: int = 20) -> list[Figure]:
    """200 binds beside 20 requests that wait for volumes that never come, and without those."""
    rates = []
    for disturbed in (False, True, False, True):
        bench.clear()
        with bench.warm_binder() as binder, Endings(bench.plane) as endings:
            if disturbed:
                bench.pods_that_wait(waits, "never")
                time.sleep(3.0)
            pods = bench.pods(count)
            begin_s = time.monotonic()
            bench.decide(pods)
            binder.wait_ended(endings, count)
            rates.append(count / (time.monotonic() - begin_s))
    undisturbed, beside = (rates[0] + rates[2]) / 2, (rates[1] + rates[3]) / 2
    return [
        Figure("binds/s alone", undisturbed),
        Figure("binds/s beside those that wait", beside),
        Figure("rate left beside those that wait", beside / undisturbed, "x"),
    ]


def waits(bench: Bench, *, count: int = 300) -> list[Figure]:
    """300 pods that wait for a volume: memory and connections of each."""
    with bench.warm_binder() as binder:
        bench.pods_that_wait(10, "later")  # what the first waits build stays, and is not counted
        _wait_for_selected(bench, 10)
        before_mib, before_files = binder.memory_mib("VmRSS"), binder.files()
        bench.pods_that_wait(count, "later")
        _wait_for_selected(bench, count + 10)
        time.sleep(5.0)
        after_mib, files = binder.memory_mib("VmRSS"), binder.files()
    bench.plane.request("DELETE", CLAIMS)
    return [
        Figure("memory of each that waits", (after_mib - before_mib) / count * 1024, "KiB"),
        Figure("memory", after_mib, "MiB"),
        Figure("descriptors before", before_files),
        Figure("descriptors", files),
    ]


def _wait_for_selected(bench: Bench, count: int) -> None:
    """Waits until the binder has asked for so many volumes."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        items = bench.plane.request("GET", CLAIMS)["items"]
        mine = [item for item in items if item["spec"].get("storageClassName") == "later"]
        asked = sum(SELECTED_NODE in (item["metadata"].get("annotations") or {}) for item in mine)
        if asked >= count:
            return
        if time.monotonic() > deadline_s:
            raise UnfinishedError(f"only {asked} of {count} volumes were asked for")
        time.sleep(0.2)


def claims(bench: Bench, *, per_pod: int = 3) -> list[Figure]:
    """A gang of 64 pods that share three claims which are bound already."""
    names = bench.names("bound", per_pod)
    bench.create(VOLUMES, (volume(name, "shared", claim_name=name) for name in names))
    bench.create(CLAIMS, (claim(name, "shared", volume=name) for name in names))
    for name in names:
        bound = ("--for=jsonpath={.status.phase}=Bound", f"pvc/{name}")
        bench.plane.kubectl("wait", "-n", NAMESPACE, *bound, "--timeout=60s")
    return _gang(bench, bench.pods(GANG, claims=names))


def gang(bench: Bench) -> list[Figure]:
    """A gang of 64 pods that share one new claim, for which there is a volume."""
    (name,) = bench.names("shared", 1)
    bench.create(VOLUMES, [volume(name, "one")])
    bench.create(CLAIMS, [claim(name, "one")])
    return _gang(bench, bench.pods(GANG, claims=[name]))


def _gang(bench: Bench, pods: Pods) -> list[Figure]:
    with bench.warm_binder() as binder, Endings(bench.plane) as endings:
        before, before_s = binder.sent(), binder.cpu_s()
        begin_s = time.monotonic()
        bench.decide(pods)
        binder.wait_ended(endings, len(pods))
        took_s = max(endings.ended_s.values()) - begin_s
        binder.wait_settled()
        used_s, sent = binder.cpu_s() - before_s, binder.sent() - before
    return [
        Figure("requests per bind", sum(sent.values()) / len(pods)),
        *(Figure(f"  {method}", number / len(pods)) for method, number in sorted(sent.items())),
        Figure("CPU per bind", used_s / len(pods) * 1000, "ms"),
        Figure("until all were bound", took_s, "s"),
    ]


def crowd(bench: Bench) -> None:
    """Ten thousand volumes of one class, each kept for a claim that others have."""
    classes(bench)
    taken = (volume(f"taken-{n}", "crowded", claim_name=f"taken-{n}") for n in range(VOLUMES_OF_CLASS))
    if not bench.plane.request("GET", f"{VOLUMES}?limit=2")["metadata"].get("continue"):
        bench.create(VOLUMES, taken)


def volumes(bench: Bench) -> list[Figure]:
    """One attempt, and ten at once, with a new claim each, among 10,000 volumes of the class."""
    figures = []
    for count in (1, ATTEMPTS):
        names = bench.names("new", count)
        bench.create(VOLUMES, (volume(name, "crowded") for name in names))
        bench.create(CLAIMS, (claim(name, "crowded") for name in names))
        made = {key: value for name in names for key, value in bench.pods(1, claims=[name]).items()}
        with bench.warm_binder() as binder, Endings(bench.plane) as endings:
            time.sleep(2.0)
            before_mib, before_s, lists = binder.memory_mib(), binder.cpu_s(), _lists(bench)
            bench.decide(made)
            binder.wait_ended(endings, count)
            time.sleep(1.0)
            peak_mib, used_s, lists = binder.memory_mib(), binder.cpu_s() - before_s, _lists(bench) - lists
        each = "one attempt" if count == 1 else f"{count} at once"
        figures += [
            Figure(f"{each}: memory at its peak, more than before", peak_mib - before_mib, "MiB"),
            Figure(f"{each}: lists of volumes", lists),
            Figure(f"{each}: CPU", used_s, "s"),
        ]
        bench.clear()
    return figures


def _lists(bench: Bench) -> int:
    """Lists of volumes that the API server has answered; all are the binder's, as others have long begun."""
    pattern = r'apiserver_request_total\{[^}]*resource="persistentvolumes"[^}]*verb="LIST"[^}]*\} ([0-9.e+]+)'
    return sum(int(float(value)) for value in re.findall(pattern, bench.plane.metrics()))
