"""What volumes cost: claims that are bound, many volumes of a class, pods that wait."""

import re
import time

from benchmark.bench import Bench
from benchmark.objects import CLAIMS, CLASSES, NAMESPACE, SELECTED_NODE, VOLUMES, claim, storage_class, volume

WAIT_S = 120.0


def waiting(bench: Bench, *, count: int = 200, waits: int = 20) -> None:
    """The rate of binds while others wait for volumes that never come, beside the undisturbed rate."""
    bench.create(CLASSES, [storage_class("never", provisioner="never.example.com")])
    rates = []
    for disturbed in (False, True, False, True):
        bench.clear()
        with bench.binder() as binder:
            binder.wait_answers()
            if disturbed:
                bench.pods_that_wait(waits, "never")
                time.sleep(3.0)
            pods = bench.pods(count)
            done = binder.finished()
            begin_s = time.monotonic()
            bench.decide(pods)
            binder.wait_finished(done + count)
            rates.append(count / (time.monotonic() - begin_s))
    undisturbed, disturbed_rate = (rates[0] + rates[2]) / 2, (rates[1] + rates[3]) / 2
    print(f"\n{waits} requests wait for volumes that never come, {count} binds beside them")
    ratio = f"{disturbed_rate / undisturbed:.2f} x"
    print(f"  binds/s {disturbed_rate:.1f}, undisturbed {undisturbed:.1f}: {ratio}")


def waits(bench: Bench, *, count: int = 300) -> None:
    """Memory and connections of each pod that waits for a volume."""
    bench.clear()
    bench.create(CLASSES, [storage_class("later", provisioner="later.example.com")])
    with bench.binder() as binder:
        binder.wait_answers()
        bench.pods_that_wait(10, "later")  # what the first waits build stays, and is not counted
        _wait_for_selected(bench, 10)
        before_mib, before_files = binder.memory_mib("VmRSS"), binder.files()
        bench.pods_that_wait(count, "later")
        _wait_for_selected(bench, count + 10)
        time.sleep(5.0)
        after_mib, files = binder.memory_mib("VmRSS"), binder.files()
    each_kib = (after_mib - before_mib) / count * 1024
    print(f"\n{count} pods that wait for a volume")
    print(f"  memory                {after_mib:6.1f} MiB, {before_mib:.1f} before: {each_kib:.0f} KiB each")
    print(f"  descriptors           {files:6d}, {before_files} before")
    bench.plane.request("DELETE", CLAIMS)


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
            raise SystemExit(f"only {asked} of {count} volumes were asked for")
        time.sleep(0.2)


def claims(bench: Bench, *, pods: int = 64, per_pod: int = 3) -> None:
    """Requests per bind of a gang whose pods share claims that are bound already."""
    bench.clear()
    names = bench.names("bound", per_pod)
    bench.create(VOLUMES, (volume(name, "shared", claim_name=name) for name in names))
    bench.create(CLAIMS, (claim(name, "shared", volume=name) for name in names))
    for name in names:
        bound = ("--for=jsonpath={.status.phase}=Bound", f"pvc/{name}")
        bench.plane.kubectl("wait", "-n", NAMESPACE, *bound, "--timeout=60s")
    made = bench.pods(pods, claims=names)
    with bench.binder() as binder:
        binder.wait_answers()
        before = binder.sent()
        bench.decide(made)
        binder.wait_finished(pods)
        time.sleep(1.0)  # events are written behind the work
        sent = binder.sent() - before
    methods = ", ".join(f"{method} {number}" for method, number in sorted(sent.items()))
    print(f"\na gang of {pods} pods with {per_pod} bound claims")
    print(f"  requests per bind     {sum(sent.values()) / pods:6.2f}: {methods}")


def volumes(bench: Bench, *, count: int = 10_000) -> None:
    """One attempt with a new claim, among many volumes of its class that others have."""
    bench.clear()
    bench.create(CLASSES, [storage_class("crowded", provisioner="kubernetes.io/no-provisioner")])
    print(f"\ncreating {count} volumes ...", flush=True)
    bench.create(VOLUMES, (volume(f"taken-{n}", "crowded", claim_name=f"taken-{n}") for n in range(count)))
    bench.create(VOLUMES, [volume("free", "crowded")])
    (name,) = bench.names("new", 1)
    bench.create(CLAIMS, [claim(name, "crowded")])
    made = bench.pods(1, claims=[name])
    with bench.binder() as binder:
        binder.wait_answers()
        time.sleep(1.0)
        before_mib, before_s, lists = binder.memory_mib("VmRSS"), binder.cpu_s(), _lists(bench)
        begin_s = time.monotonic()
        bench.decide(made)
        binder.wait_finished(1)
        took_s = time.monotonic() - begin_s
        peak_mib, used_s, lists = binder.memory_mib(), binder.cpu_s() - before_s, _lists(bench) - lists
    print(f"one attempt with a new claim among {count} volumes of its class")
    print(f"  memory                {peak_mib - before_mib:6.1f} MiB more at its peak")
    print(f"  lists of volumes      {lists:6d}, a page each")
    print(f"  CPU {used_s:.2f} s, bound after {took_s:.2f} s")


def _lists(bench: Bench) -> int:
    """Lists of volumes that the API server has answered; all are the binder's, as others have long begun."""
    pattern = r'apiserver_request_total\{[^}]*resource="persistentvolumes"[^}]*verb="LIST"[^}]*\} ([0-9.e+]+)'
    return sum(int(float(value)) for value in re.findall(pattern, bench.plane.metrics()))


def scale(bench: Bench, *, pods: int = 10_000, nodes: int = 1_000) -> None:
    """A large cluster: memory, and the time to the first bind."""
    bench.clear()
    bench.create("/api/v1/nodes", ({"metadata": {"name": f"node-{number}"}} for number in range(nodes)))
    print(f"\ncreating {pods} pods of about 7 KB ...", flush=True)
    bench.pods(pods, padding=6000)
    bench.decide(bench.pods(1))
    started_s = time.monotonic()
    with bench.binder() as binder:
        binder.wait_finished(1)
        first_s = time.monotonic() - started_s
        time.sleep(5.0)
        peak_mib, now_mib = binder.memory_mib(), binder.memory_mib("VmRSS")
    print(f"cluster with {pods} pods and {nodes} nodes")
    print(f"  start to first bind   {first_s:6.2f} s")
    print(f"  memory                {peak_mib:6.1f} MiB at its peak, {now_mib:.1f} MiB after")
