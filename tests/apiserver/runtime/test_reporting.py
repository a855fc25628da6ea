"""Events, on a server that is there, and on one that is not."""

from collections import Counter
from typing import Any
from uuid import uuid4

import anyio
import pytest
from controlplane import ControlPlane

from controller.runtime.client import Client
from controller.runtime.reporting import EventRecorder, reference
from tests.apiserver.runtime.conftest import Account, Background, Connect
from tests.polling import eventually
from tests.proxy import Answer, DropAnswer, Hang, Proxy, Refuse, Rule

pytestmark = pytest.mark.anyio


class Events:
    """A recorder about a pod, and what the server has of it."""

    def __init__(self, client: Client, plane: ControlPlane, namespace: str, **more: Any) -> None:  # noqa: ANN401
        self.recorder = EventRecorder(client, "test", **more)
        self._plane = plane
        self._namespace = namespace

    def say(self, message: str, name: str = "p") -> None:
        regarding = {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": self._namespace,
            "name": name,
            "uid": "u",
        }
        self.recorder.event(regarding, "Warning", "Said", message)

    def written(self) -> list[dict[str, Any]]:
        path = f"/api/v1/namespaces/{self._namespace}/events"
        return list(self._plane.request("GET", path)["items"])

    def counts(self) -> Counter[str]:
        return Counter({event["message"]: event["count"] for event in self.written()})


@pytest.fixture
async def events(
    client: Client, control_plane: ControlPlane, namespace: str, background: Background
) -> Events:
    made = Events(client, control_plane, namespace)
    background(made.recorder.run())
    return made


async def test_an_event_is_what_kubectl_shows(
    events: Events, control_plane: ControlPlane, namespace: str
) -> None:
    events.say("50% {of} %s\nit")
    await events.recorder.flush(5)
    (event,) = events.written()
    assert event["message"] == "50% {of} %s it"
    assert (event["type"], event["reason"], event["count"]) == ("Warning", "Said", 1)
    assert event["source"] == {"component": "test"}
    assert event["involvedObject"]["uid"] == "u"
    assert "Said" in control_plane.kubectl("get", "events", "-n", namespace)


async def test_the_same_again_is_counted_and_not_written_anew(events: Events) -> None:
    for _ in range(3):
        events.say("again")
        events.say("and again")
    await events.recorder.flush(5)
    assert events.counts() == {"again": 3, "and again": 3}
    assert len(events.written()) == 2


async def test_an_event_that_has_expired_begins_anew(
    events: Events, control_plane: ControlPlane, namespace: str
) -> None:
    events.say("again")
    await events.recorder.flush(5)
    control_plane.request("DELETE", f"/api/v1/namespaces/{namespace}/events")
    events.say("again")
    await events.recorder.flush(5)
    assert events.counts() == {"again": 1}


async def test_a_long_message_is_cut_to_what_the_server_takes(events: Events) -> None:
    events.say("€" * 2000, name="n" * 253)
    await events.recorder.flush(5)
    (event,) = events.written()
    assert len(event["message"].encode()) <= 1024


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_an_answer_that_is_lost_makes_no_second_event_and_counts_once(
    events: Events, proxy: Proxy, method: str
) -> None:
    with proxy.rule(Rule(DropAnswer(), method=method, path="events", times=1)) as dropped:
        events.say("once")
        events.say("once")
        await events.recorder.flush(5)
    assert dropped.count == 2
    assert events.counts() == {"once": 2}
    assert len(events.written()) == 1


async def test_a_short_outage_is_survived(events: Events, proxy: Proxy) -> None:
    with proxy.rule(Rule(Refuse(), path="events", times=1)):
        events.say("a")
        await events.recorder.flush(5)
    assert events.counts() == {"a": 1}


async def test_an_event_that_is_refused_is_dropped_and_the_next_is_sent(
    events: Events, proxy: Proxy, logs: list[str]
) -> None:
    with proxy.rule(Rule(Answer(422), path="events", times=1)):
        events.say("a")
        events.say("b")
        await events.recorder.flush(5)
    assert events.counts() == {"b": 1}
    assert len([line for line in logs if "could not be written" in line]) == 1


async def test_too_many_events_push_out_the_oldest_that_wait_and_no_other(
    client: Client, control_plane: ControlPlane, namespace: str, proxy: Proxy, background: Background
) -> None:
    events = Events(client, control_plane, namespace, capacity=3)
    background(events.recorder.run())
    with proxy.rule(Rule(Hang(), path="events")) as hung:
        events.say("under way")
        await eventually(lambda: hung.count)
        for n in range(5):
            events.say(f"number {n}")
    await events.recorder.flush(5)
    assert set(events.counts()) == {"under way", "number 2", "number 3", "number 4"}


async def test_flush_waits_for_the_one_under_way_but_not_for_ever(events: Events, proxy: Proxy) -> None:
    with proxy.rule(Rule(Hang(), path="events")) as hung:
        events.say("a")
        await eventually(lambda: hung.count)
        with anyio.fail_after(2):
            await events.recorder.flush(0.3)
        assert events.written() == []
    await events.recorder.flush(5)
    assert events.counts() == {"a": 1}


async def test_flush_of_nothing_takes_no_time(client: Client) -> None:
    with anyio.fail_after(0.5):
        await EventRecorder(client, "test").flush(60)


async def test_without_the_right_to_write_events_all_else_goes_on(
    connect: Connect,
    control_plane: ControlPlane,
    namespace: str,
    account: Account,
    background: Background,
    logs: list[str],
) -> None:
    events = Events(await connect(token=account.token()), control_plane, namespace)
    background(events.recorder.run())
    events.say("a")
    await events.recorder.flush(5)
    assert any("could not be written" in line for line in logs)


async def test_an_event_about_an_object_without_a_namespace(
    client: Client, control_plane: ControlPlane, background: Background
) -> None:
    """F-52: it ended the process."""
    recorder = EventRecorder(client, "test")
    background(recorder.run())
    node = {"metadata": {"name": f"node-{uuid4().hex[:8]}", "uid": uuid4().hex}}
    recorder.event(reference(node, "v1", "Node"), "Normal", "Said", "hello")
    await recorder.flush(5)
    path = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.uid={node['metadata']['uid']}"
    (event,) = control_plane.request("GET", path)["items"]
    assert event["message"] == "hello"
    assert event["involvedObject"]["name"] == node["metadata"]["name"]


async def test_an_event_that_cannot_be_sent_takes_no_others_with_it(events: Events, logs: list[str]) -> None:
    """F-52: a poisonous one ended the process."""
    events.recorder.event({"kind": "Pod"}, "Normal", "Said", "of nobody")
    events.recorder.event({"name": "a", "odd": object()}, "Normal", "Said", "odd")  # type: ignore[dict-item]
    events.say("hello")
    await events.recorder.flush(5)
    assert events.counts() == {"hello": 1}
    assert len([line for line in logs if line.startswith(("WARNING An event", "ERROR An event"))]) == 2
