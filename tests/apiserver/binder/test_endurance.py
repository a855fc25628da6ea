"""Descriptors and memory of the process do not grow with what it has done."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.binder import Binders
from tests.cluster import Cluster

WAVE, WAVES = 60, 4
SPARE_FILES = 8
"""Connections come and go with the load."""
SPARE_MIB = 8.0


def held(pid: int) -> tuple[int, float]:
    """Descriptors, and resident memory in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (resident,) = (int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return len(list(Path(f"/proc/{pid}/fd").iterdir())), resident / 1024


def test_requests_that_come_and_go_leave_nothing(cluster: Cluster, binders: Binders) -> None:
    """The first wave fills what is kept; 20,000 are measured by hand. Beside them some fail all the time."""
    binder = binders.start("--rate-limiter-max-delay=1")
    node = cluster.node()
    for number in range(5):
        cluster.pod_and_request(f"fails-{number}", "no-such-node", backoffLimit=10_000)
    found = []
    for wave in range(WAVES + 1):
        names = [f"w-{wave}-{number}" for number in range(WAVE)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda name: cluster.pod_and_request(name, node), names))
            for name in names:
                cluster.wait_for(name, "Succeeded", within_s=60)
            list(pool.map(cluster.delete_pod, names))
        found.append(held(binder.pid))
    (files, resident_mib), *later = found
    assert max(count for count, _ in later) <= files + SPARE_FILES, found
    assert max(mib for _, mib in later) <= resident_mib + SPARE_MIB, found
    assert cluster.status("fails-0")["failedAttempts"] > WAVES
