"""What it costs to look: `kai-binder gpus` in a large cluster."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from benchmark.bench import Bench
from benchmark.figures import Figure
from benchmark.objects import PODS, RESERVATIONS, Object, pod

GPUS = 8
CARD_MIB = 40960


def gpus(bench: Bench, *, pods: int = 5_000, nodes: int = 500, runs: int = 5) -> list[Figure]:
    """`kai-binder gpus` with 5,000 pods of about 6 KB on 500 nodes: time, CPU, memory."""
    labels = {"nvidia.com/gpu.memory": str(CARD_MIB), "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}
    amounts = {"nvidia.com/gpu": str(GPUS)}
    names = [f"gpu-node-{number}" for number in range(nodes)]
    status = {"capacity": amounts, "allocatable": amounts}
    bench.create(
        "/api/v1/nodes", ({"metadata": {"name": n, "labels": labels}, "status": status} for n in names)
    )
    made = list(_pods(names, pods))
    bench.create(RESERVATIONS, (body for path, body in made if path == RESERVATIONS))
    bench.create(PODS, (body for path, body in made if path == PODS))
    times, used, peak_mib, lines = [], [], 0.0, 0
    command = [sys.executable, "-P", "-m", "controller", "gpus"]
    for _ in range(runs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started_s = time.monotonic()
        done = subprocess.run(
            [*command, f"--kubeconfig={bench.plane.admin_kubeconfig}"],
            env={**os.environ, "PYTHONPATH": str(bench.subject.checkout)},
            capture_output=True,
            text=True,
            check=False,
        )
        times.append(time.monotonic() - started_s)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        peak_mib, lines = after.ru_maxrss / 1024, len(done.stdout.splitlines())
        if done.returncode != 0:
            raise SystemExit(f"it ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr}")
    return [
        Figure("time", statistics.median(times), "s"),
        Figure("CPU", statistics.median(used), "s"),
        Figure("memory at its peak, at most", peak_mib, "MiB"),
        Figure("lines", lines),
    ]


def _pods(names: list[str], count: int) -> Iterator[tuple[str, Object]]:
    """In turns two shares with their reservation, a whole GPU and a pod without any; path and body."""
    for number in range(count // 5):
        node, group = names[number % len(names)], f"looked-at-{number}"
        held = pod(f"gpu-reservation-{number:016x}", padding=0)
        held["metadata"] |= {
            "labels": {"app": "kai-resource-reservation", "runai-gpu-group": group},
            "annotations": {"run.ai/reserve_for_gpu_index": f"GPU-{number:032x}"},
        }
        held["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
        held["spec"] |= {"nodeName": node, "serviceAccountName": "kai-resource-reservation"}
        yield RESERVATIONS, held
        for which in ("a", "b"):
            share = pod(f"share-{number}-{which}", group=group, padding=5000)
            share["metadata"]["labels"] = {"runai-gpu-group": group}
            share["spec"]["nodeName"] = node
            yield PODS, share
        whole = pod(f"whole-{number}", padding=5000)
        whole["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
        whole["spec"]["nodeName"] = node
        yield PODS, whole
        other = pod(f"other-{number}", padding=5000)
        other["spec"]["nodeName"] = node
        yield PODS, other
