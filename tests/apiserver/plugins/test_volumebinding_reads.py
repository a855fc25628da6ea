"""What many pods with volumes cost in requests and memory, counted by the proxy and the kernel."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from controlplane import ControlPlane

from controller.runtime.client import Object
from tests.apiserver.conftest import BINDER
from tests.binder import Binder, Binders
from tests.cluster import Cluster
from tests.provisioner import Provisioner
from tests.proxy import Answer, Call, Proxy, Rule
from tests.volumes import Volumes

GANG, CLAIMS = 64, 3
MANY = 10_000
PAGE, PAGE_SIZE = "/persistentvolumes$", 250


@pytest.fixture
def volumes(cluster: Cluster) -> Iterator[Volumes]:
    made = Volumes(cluster)
    yield made
    made.delete_requests()


@pytest.fixture
def proxied(proxy: Proxy, binders: Binders, control_plane: ControlPlane) -> Binder:
    """A binder behind the proxy, with the rights that we ship; it ends before the proxy does."""
    return binders.start(kubeconfig=proxy.kubeconfig(control_plane.token(*BINDER)))


def counted(calls: list[Call]) -> Counter[str]:
    """Requests by verb and kind, without what goes on beside binds."""
    counts: Counter[str] = Counter()
    for call in calls:
        kind = (
            "pods/binding"
            if call.path.endswith("/binding")
            else re.sub(r"^/apis?/[^/]+/(v[^/]+/)?", "", call.path)
        )
        kind = re.sub(r"^namespaces/[^/]+/", "", kind)
        counts[f"{'WATCH' if call.watches else call.method} {kind.split('/')[0]}"] += 1
    return counts


def ask_all(cluster: Cluster, nodes: list[str], pods: list[Object]) -> None:
    """Makes the requests for a gang, as fast as may be."""
    with ThreadPoolExecutor(8) as threads:
        list(
            threads.map(
                lambda number: cluster.ask(
                    pods[number]["metadata"]["name"], nodes[number % len(nodes)], owner=pods[number]
                ),
                range(len(pods)),
            )
        )


@pytest.mark.usefixtures("proxied")
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_f_03_a_gang_with_three_bound_claims_each(
    cluster: Cluster, volumes: Volumes, proxy: Proxy, own: bool
) -> None:
    """F-3: shared claims are read once, own ones in a few lists; Go needs five requests for each bind."""
    local = volumes.storage_class()
    nodes = [volumes.node(f"n{number}") for number in range(4)]
    sets = GANG if own else 1

    def make(number: int) -> None:
        for name in "abc"[:CLAIMS]:
            volume = volumes.volume(f"{name}{number}", local, None)
            volumes.bound_claim(f"{name}{number}", local, volume)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(make, range(sets)))
    pods = [
        cluster.pod(f"p{number}", claims=tuple(f"{name}{number % sets}" for name in "abc"[:CLAIMS]))
        for number in range(GANG)
    ]
    before = len(proxy.calls)
    ask_all(cluster, nodes, pods)
    cluster.wait_for_all(GANG)
    counts = counted(proxy.calls[before:])
    assert counts["POST pods"] == GANG
    reads = sum(count for name, count in counts.items() if "persistentvolume" in name)
    assert reads <= GANG, counts
    assert sum(counts.values()) <= 4.5 * GANG, counts


def many_volumes(class_name: str, count: int, *, bound: bool) -> list[Object]:
    """Volumes as a CSI driver's provisioner leaves them."""
    made = []
    for number in range(count):
        uid = f"{number:08x}-1111-4222-8333-444455556666"
        fields: Object = {"f:spec": {f"f:field{index}": {} for index in range(12)}}
        spec: Object = {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class_name,
            "volumeMode": "Filesystem",
            "persistentVolumeReclaimPolicy": "Delete",
            "csi": {
                "driver": "csi.example.com",
                "volumeHandle": uid,
                "volumeAttributes": {"a": "b", "c": uid},
            },
            "nodeAffinity": {
                "required": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": "host", "operator": "In", "values": [f"n{number % 500}"]}
                            ]
                        }
                    ]
                }
            },
        }
        if bound:
            claim = {"namespace": f"team-{number % 9}", "name": f"data-{number}", "uid": uid}
            spec["claimRef"] = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", **claim}
        metadata = {
            "name": f"pvc-{uid}",
            "uid": uid,
            "resourceVersion": str(1000 + number),
            "managedFields": [{"manager": "csi-provisioner", "fieldsV1": fields}],
        }
        phase = "Bound" if bound else "Available"
        made.append({"metadata": metadata, "spec": spec, "status": {"phase": phase}})
    return made


class BigCluster:
    """Answers lists of volumes, page by page, as a server with ten thousand of them would."""

    def __init__(self, proxy: Proxy, items: list[Object]) -> None:
        self._pages = []
        for start in range(0, len(items), PAGE_SIZE):
            more = {"continue": str(start + PAGE_SIZE)} if start + PAGE_SIZE < len(items) else {}
            page = {
                "kind": "PersistentVolumeList",
                "apiVersion": "v1",
                "metadata": {"resourceVersion": "99999", **more},
                "items": items[start : start + PAGE_SIZE],
            }
            rule = Rule(Answer(200, json.dumps(page)), method="GET", path=PAGE, where=partial(_starts, start))
            self._pages.append(proxy.add(rule))

    @property
    def lists(self) -> int:
        """How many were begun."""
        return self._pages[0].count


def _starts(start: int, call: Call) -> bool:
    return call.query.get("continue", "0") == str(start)


def resident_mib(pid: int, field: str = "VmRSS") -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"{field}:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) / 1024


@pytest.mark.parametrize("bound", [True, False], ids=["bound", "free"])
def test_f_02_ten_thousand_volumes_of_one_class(
    cluster: Cluster, volumes: Volumes, proxy: Proxy, proxied: Binder, bound: bool
) -> None:
    """F-2: an attempt keeps little of them, and ten at once share one list."""
    made, node = volumes.made_class(), volumes.node()
    big = BigCluster(proxy, many_volumes(made, MANY, bound=bound))
    volumes.claim("first", made)
    with Provisioner(cluster.plane, cluster.namespace) as provisioner:
        provisioner.silent = True
        before_mib = resident_mib(proxied.pid)
        Path(f"/proc/{proxied.pid}/clear_refs").write_text("5")  # the peak begins anew
        volumes.pod_and_request("first", node, "first")
        volumes.wait_until_shown("first", within_s=20)
        more_mib = resident_mib(proxied.pid, "VmHWM") - before_mib
        assert more_mib < (8.0 if bound else 12.0), "with the pages that come in"
        lists = big.lists
        assert lists == 1
        pods = []
        for number in range(10):
            volumes.claim(f"data-{number}", made)
            pods.append(cluster.pod(f"p{number}", claims=(f"data-{number}",)))
        ask_all(cluster, [node], pods)
        for number in range(10):
            volumes.wait_until_shown(f"p{number}", within_s=30)
        assert big.lists - lists <= 4


def test_f_02_a_list_is_used_by_those_who_come_a_moment_later(
    cluster: Cluster, volumes: Volumes, proxy: Proxy, proxied: Binder
) -> None:
    """F-2: who finds a free volume in it needs no list of his own."""
    node, local, count = volumes.node(), volumes.storage_class(), 24
    pods = []
    for number in range(count):
        volumes.volume(f"v{number}", local, node)
        volumes.claim(f"data-{number}", local)
        pods.append(cluster.pod(f"p{number}", claims=(f"data-{number}",)))
    before = proxy.count("GET", "/persistentvolumes$")
    ask_all(cluster, [node], pods)
    cluster.wait_for_all(count)
    assert len({volumes.volume_of(f"data-{number}") for number in range(count)}) == count
    assert proxy.count("GET", "/persistentvolumes$") - before <= 6
    assert proxy.count("PATCH", "/persistentvolumes/") == count, "what is taken is known without a conflict"


@pytest.mark.usefixtures("proxied")
def test_f_11_class_driver_and_capacities_are_looked_at_once(
    cluster: Cluster, volumes: Volumes, proxy: Proxy
) -> None:
    """F-11: for all claims of an attempt together."""
    storage, driver = "/apis/storage.k8s.io/v1", f"{volumes.unique('driver')}.example.com"
    body = {"metadata": {"name": driver}, "spec": {"storageCapacity": True}}
    cluster.plane.request("POST", f"{storage}/csidrivers", body)
    node, made = volumes.node(), volumes.storage_class("csi", driver)
    capacity = {"metadata": {"name": "all"}, "storageClassName": made, "capacity": "9Gi", "nodeTopology": {}}
    cluster.plane.request("POST", f"{storage}/namespaces/{cluster.namespace}/csistoragecapacities", capacity)
    for name in "abcdef":
        volumes.claim(name, made)
    volumes.pod_and_request("a", node, *"abcdef")
    volumes.wait_until_shown("a")
    for kind in ("storageclasses", "csidrivers", "csistoragecapacities", "persistentvolumes$"):
        # On a busy machine once more: an answer serves for a moment, and each of the two looks may need one.
        assert 1 <= proxy.count("GET", f"/{kind}") <= 2


@pytest.mark.usefixtures("proxied")
def test_f_12_a_list_whose_rest_is_gone_begins_anew(cluster: Cluster, volumes: Volumes, proxy: Proxy) -> None:
    """F-12: a 410 in the middle ended the attempt."""
    node, local = volumes.node(), volumes.storage_class()
    right = volumes.volume("right", local, node)
    page = {
        "kind": "PersistentVolumeList",
        "apiVersion": "v1",
        "metadata": {"continue": "x", "resourceVersion": "1"},
        "items": [],
    }
    gone = {"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410, "message": "too old"}
    first = Rule(
        Answer(200, page), path="/persistentvolumes$", times=1, where=lambda call: "limit" in call.query
    )
    rest = Rule(Answer(410, gone), where=lambda call: call.query.get("continue") == "x")
    proxy.add(first)
    proxy.add(rest)
    volumes.claim("data", local)
    volumes.pod_and_request("a", node, "data")
    cluster.wait_for("a", "Succeeded")
    assert "failedAttempts" not in cluster.status("a")
    assert volumes.volume_of("data") == right
    assert rest.count == 1
