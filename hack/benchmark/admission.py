"""What the admission webhook costs whoever makes a pod."""

import base64
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import yaml
from controlplane.pki import write_keys
from controlplane.process import free_ports

from benchmark.bench import Bench
from benchmark.binder import Measured
from benchmark.figures import Figure, quantile
from benchmark.objects import PODS, Object

CREATORS = 16
OWN = r'kai_binder_admission_request_duration_seconds_bucket\{le="([^"]+)",path="/%s--v1-pod"\} ([0-9.e+]+)'
SERVERS = (
    r"apiserver_admission_webhook_admission_duration_seconds_bucket"
    r'\{name="%s\.pods[^"]+",operation="CREATE"[^}]*le="([^"]+)"\} ([0-9.e+]+)'
)


def admission(bench: Bench, *, rate: float = 50.0, seconds: float = 20.0) -> list[Figure]:
    """Pods with a share through the API server, at 50/s: the webhook's own time, and that of a creation."""
    keys = write_keys(bench.subject.directory / "webhook")
    (port,) = free_ports(1)
    words = (
        "admission",
        f"--webhook-bind-address=127.0.0.1:{port}",
        f"--tls-cert-file={keys.certificate}",
        f"--tls-private-key-file={keys.key}",
        "--binder-metrics-url=",
    )
    webhook = Measured(bench.subject, "kai-binder-admission", words)
    webhook.start()
    try:
        webhook.wait_answers()
        _install(bench, port, keys.ca.read_bytes())
        _create(bench, rate, 2.0, share=True)  # connections are made, and code is warm
        before = _all_buckets(webhook, bench)
        used_s = webhook.cpu_s()
        shares = _create(bench, rate, seconds, share=True)
        used_s = webhook.cpu_s() - used_s
        steps = _all_buckets(webhook, bench)
        plain = _create(bench, rate, seconds, share=False)
        figures = []
        for what, counts in steps.items():
            new = {bound_s: count - before[what].get(bound_s, 0) for bound_s, count in counts.items()}
            figures += [Figure(f"{what}, p{part}", _quantile(new, part / 100), "ms") for part in (50, 99)]
        for what, times in (("a creation with a share", shares), ("a creation without", plain)):
            figures += [
                Figure(f"{what}, p{part}", quantile(times, part / 100) * 1000, "ms") for part in (50, 99)
            ]
        return [
            *figures,
            Figure("CPU of the webhook for a pod", used_s / len(shares) * 1000, "ms"),
            Figure("peak memory of the webhook", webhook.memory_mib(), "MiB"),
        ]
    finally:
        for kind in ("mutating", "validating"):
            name = f"{kind}webhookconfiguration/kai-binder-admission"
            bench.plane.kubectl("delete", name, "--ignore-not-found")
        webhook.stop(10.0)


def _install(bench: Bench, port: int, authority: bytes) -> None:
    """Has the API server call this webhook, by the shipped configurations."""
    text = (bench.subject.checkout / "config/admission/webhooks.yaml").read_text()
    items = list(yaml.safe_load_all(text))
    for webhook in (webhook for item in items for webhook in item["webhooks"]):
        path = webhook["clientConfig"]["service"]["path"]
        bundle = base64.b64encode(authority).decode()
        webhook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}
    bench.plane.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(items))
    time.sleep(3.0)  # until the API server has seen them


def _pod(name: str, *, share: bool) -> Object:
    """A pod as a user writes it, of middling size."""
    container = {"image": "cuda", "env": [{"name": f"OPTION_{number}", "value": "x"} for number in range(20)]}
    containers = [{"name": "main", **container}, {"name": "beside", **container}]
    annotations = {"gpu-fraction": "0.5"} if share else {}
    spec = {"schedulerName": "kai-scheduler", "containers": containers}
    return {"metadata": {"name": name, "annotations": annotations}, "spec": spec}


def _create(bench: Bench, rate: float, seconds: float, *, share: bool) -> list[float]:
    """Creates pods at a steady rate; returns how long each took, in seconds."""
    names = bench.names("share" if share else "plain", int(rate * seconds))
    begin_s = time.monotonic()

    def create(numbered: tuple[int, str]) -> float:
        number, name = numbered
        time.sleep(max(0.0, begin_s + number / rate - time.monotonic()))
        started_s = time.monotonic()
        bench.plane.request("POST", PODS, _pod(name, share=share))
        return time.monotonic() - started_s

    with ThreadPoolExecutor(CREATORS) as pool:
        return list(pool.map(create, enumerate(names)))


def _all_buckets(webhook: Measured, bench: Bench) -> dict[str, dict[float, int]]:
    """Counts so far of the calls by their length, by the webhook's own measure and by the API server's."""
    own, server = webhook.metrics(), bench.plane.metrics()
    found = {}
    for name in ("mutate", "validate"):
        found[f"{name}, in the webhook"] = _buckets(own, OWN % name)
        found[f"{name}, as the API server sees it"] = _buckets(server, SERVERS % name)
    return found


def _buckets(text: str, pattern: str) -> dict[float, int]:
    """The counts of a histogram by the upper bounds of its buckets, in seconds."""
    counts: Counter[float] = Counter()
    for bound_s, count in re.findall(pattern, text):
        counts[float(bound_s)] += int(float(count))
    return dict(counts)


def _quantile(steps: dict[float, int], part: float) -> float:
    """Milliseconds below which this part of the calls stayed, between two bounds as if they lay evenly."""
    wanted = part * max(steps.values(), default=0)
    below_s, below = 0.0, 0
    for bound_s, count in sorted(steps.items()):
        if count >= wanted and count > below:
            share = (wanted - below) / (count - below)
            return (below_s + (bound_s - below_s) * share) * 1000 if bound_s != float("inf") else float("inf")
        below_s, below = bound_s, count
    return float("nan")
