"""The runtime half is reusable: a controller of ConfigMaps on nothing else."""

import ast
from pathlib import Path

import anyio
import pytest
from controlplane import ControlPlane

from controller.runtime.client import Client
from tests.apiserver.runtime import toy
from tests.apiserver.runtime.conftest import Background, ConfigMaps
from tests.polling import eventually
from tests.proxy import Proxy, Refuse, Rule

pytestmark = pytest.mark.anyio


async def test_it_copies_and_keeps_the_copies_true(
    client: Client, control_plane: ControlPlane, config_maps: ConfigMaps, proxy: Proxy, background: Background
) -> None:
    where = f"/api/v1/namespaces/{config_maps.namespace}"

    def data() -> dict[str, object]:
        items = control_plane.request("GET", f"{where}/configmaps?labelSelector=copy-of")["items"]
        return {item["metadata"]["name"]: item.get("data") for item in items}

    config_maps.create("before", {"k": "1"}, labels={"copy-to": "copy-1"})
    config_maps.create("other")
    stop = anyio.Event()
    manager = toy.build(client, {"fieldSelector": f"metadata.namespace={config_maps.namespace}"})
    running = background(manager.run(stop))
    await eventually(lambda: data() == {"copy-1": {"k": "1"}})
    assert manager.ready() is None
    assert manager.alive() is None

    config_maps.create("later", {"k": "2"}, labels={"copy-to": "copy-2"})
    config_maps.change("before", {"k": "3"})
    await eventually(lambda: data() == {"copy-1": {"k": "3"}, "copy-2": {"k": "2"}})

    config_maps.delete("copy-1")
    config_maps.change("copy-2", {"k": "tampered"})
    await eventually(lambda: data() == {"copy-1": {"k": "3"}, "copy-2": {"k": "2"}})

    with proxy.rule(Rule(Refuse())):
        config_maps.change("later", {"k": "4"})
        await anyio.sleep(0.3)
    await eventually(lambda: data() == {"copy-1": {"k": "3"}, "copy-2": {"k": "4"}})

    stop.set()
    with anyio.fail_after(5):
        await running
    events = control_plane.request("GET", f"{where}/events")["items"]
    copied = {event["message"]: event["count"] for event in events if event["reason"] == "Copied"}
    assert copied == {"Copied to copy-1": 2, "Copied to copy-2": 1}


def test_it_is_small_and_uses_nothing_else_of_ours() -> None:
    text = Path(toy.__file__).read_text()
    assert len(text.splitlines()) < 60
    modules = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    ours = {module for module in modules if module is not None and module.startswith(("controller", "tests"))}
    assert all(module.startswith("controller.runtime") for module in ours)
