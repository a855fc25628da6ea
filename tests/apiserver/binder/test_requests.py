"""What a bind costs the API server, by its own count: 500 requests under the shipped role."""

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from controlplane import ControlPlane

from tests.binder import Binders
from tests.cluster import Cluster
from tests.polling import wait_until

COUNT = 500
LINE = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$")
LABEL = re.compile(r'(\w+)="([^"]*)"')
RESOURCES = {"pods", "nodes", "bindrequests", "events", "persistentvolumes", "persistentvolumeclaims"}


def request_counts(plane: ControlPlane) -> Counter[str]:
    """Requests so far, by verb, kind and subresource; without lists and watches, which no bind needs."""
    counts: Counter[str] = Counter()
    for line in plane.metrics().splitlines():
        if found := LINE.match(line):
            labels = dict(LABEL.findall(found[1]))
            kind = "/".join(filter(None, (labels["resource"], labels["subresource"])))
            if labels["resource"] in RESOURCES and labels["verb"] not in ("LIST", "WATCH"):
                counts[f"{labels['verb']} {kind}"] += int(float(found[2]))
    return counts


def test_500_requests_bind_with_four_api_requests_each(
    own_plane: ControlPlane, own_cluster: Cluster, own_binders: Binders
) -> None:
    nodes = [own_cluster.node() for _ in range(5)]
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(
                lambda number: own_cluster.pod_and_request(f"p-{number}", nodes[number % 5]), range(COUNT)
            )
        )
    before = request_counts(own_plane)
    binder = own_binders.start()
    own_cluster.wait_for_all(COUNT, within_s=90)

    def made() -> Counter[str]:
        return request_counts(own_plane) - before

    wait_until(lambda: made()["POST events"] >= COUNT, within_s=30)
    assert binder.stop() == 0
    assert made() == {
        "POST pods/binding": COUNT,
        "PATCH bindrequests/status": COUNT,
        "PATCH pods/status": COUNT,
        "POST events": COUNT,
    }
    for pod in own_cluster.all_pods():
        number = int(pod["metadata"]["name"].removeprefix("p-"))
        assert pod["spec"]["nodeName"] == nodes[number % 5]
        told = [item for item in pod["status"]["conditions"] if item["type"] == "PodBound"]
        assert [item["status"] for item in told] == ["True"]
    assert "WARNING" not in binder.log
