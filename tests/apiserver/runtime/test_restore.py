"""What is followed when etcd is restored from a backup: the server's versions go back."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from controlplane import ControlPlane
from controlplane.client import answers

from controller.runtime.cache import Cache
from controller.runtime.changes import Changes, Judged, Target
from controller.runtime.client import Client, ClientOptions, Object, Resource
from controller.runtime.streams import StreamOptions
from controller.runtime.watching import WatchOptions
from tests.apiserver.runtime.conftest import Background, ConfigMaps
from tests.cluster import Cluster
from tests.polling import eventually

pytestmark = pytest.mark.anyio

CONFIG_MAPS = Resource("v1", "configmaps")
OPTIONS = WatchOptions(watch_s=4, idle_s=10, backoff_s=0.1, max_backoff_s=0.5)


class Etcd:
    """The data of a control plane's etcd, which can be saved and put back; both stop it for a while."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self._plane = plane
        self._programs = plane._run.programs
        self._data = plane._data / "etcd"
        self._backup = directory / "etcd"

    def save(self) -> None:
        self._stop()
        shutil.copytree(self._data, self._backup)
        self._start()

    def restore(self) -> None:
        self._stop()
        shutil.rmtree(self._data)
        shutil.copytree(self._backup, self._data)
        self._start()

    def _stop(self) -> None:
        self._plane.kill_apiserver()
        self._programs["etcd"].stop(5)

    def _start(self) -> None:
        etcd = self._programs["etcd"]
        etcd.start()
        etcd.wait_until(lambda: answers(f"{self._plane.etcd_url}/health"), 30)
        self._plane.start_apiserver()


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path / "plane", controller_manager=False) as running:
        yield running


@pytest.fixture
async def straight(plane: ControlPlane) -> Client:
    return await Client.connect(ClientOptions(kubeconfig=str(plane.admin_kubeconfig), deadline_s=5))


async def test_what_the_restored_server_says_counts(
    plane: ControlPlane, straight: Client, background: Background, tmp_path: Path
) -> None:
    """F-47: a watch of a version from the future brings nothing, for ever; and what is older was ignored."""
    config_maps = ConfigMaps(plane, Cluster.fresh(plane).namespace)
    namespace = config_maps.namespace
    for name in ("stays", "changes", "goes", "awaited"):
        config_maps.create(name, {"k": "1"})
    etcd = Etcd(plane, tmp_path)
    await anyio.to_thread.run_sync(etcd.save)

    cache = Cache(straight, CONFIG_MAPS, selectors=config_maps.selectors, options=OPTIONS)
    changes = Changes(straight, (), StreamOptions(watch=OPTIONS))
    background(cache.run())
    background(changes.run())
    await cache.settled()
    for number in range(30):
        config_maps.change("changes", {"k": f"after {number}"})
    config_maps.delete("goes")
    known = config_maps.change("awaited", {"k": "after"})
    config_maps.create("new", {"k": "1"})
    values = {"stays": "1", "changes": "after 29", "awaited": "after", "new": "1"}
    await eventually(lambda: held(cache) == values)
    seen: list[str] = []

    def judge(item: Object | None) -> bool | None:
        seen.append(item["data"]["k"] if item is not None else "gone")
        return seen[-1] == "end" or None

    version = known["metadata"]["resourceVersion"]
    waiting = background(
        changes.until(Judged(Target(CONFIG_MAPS, "awaited", namespace, version), judge)),
    )
    await anyio.sleep(0.5)

    await anyio.to_thread.run_sync(etcd.restore)
    values = {"stays": "1", "changes": "1", "goes": "1", "awaited": "1"}
    await eventually(lambda: held(cache) == values, within_s=30)
    assert cache.era == 1
    config_maps.change("stays", {"k": "2"})
    await eventually(lambda: held(cache)["stays"] == "2", within_s=10)
    await eventually(lambda: seen == ["1"], within_s=10)
    config_maps.change("awaited", {"k": "end"})
    with anyio.fail_after(10):
        await waiting
    assert seen == ["1", "end"]
    await straight.close()


def held(cache: Cache) -> dict[str, str]:
    return {item["metadata"]["name"]: item["data"]["k"] for item in cache}
