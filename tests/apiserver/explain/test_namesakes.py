"""Requests of earlier pods of a name, and pods that are bound between two reads."""

from collections.abc import Iterator

import pytest
from controlplane import ControlPlane

from tests.apiserver.explain.conftest import Team
from tests.apiserver.explain.test_rights import reader
from tests.explaining import Explained, explain
from tests.proxy import Call, Delay, Proxy, Rule
from tests.volumes import Volumes

FAILED = {"phase": "Failed", "failedAttempts": 1, "observedGeneration": 1, "reason": "Bound NodeGone: gone"}


def asked(team: Team, name: str) -> Explained:
    return explain(team.kubeconfig, name, "-n", team.cluster.namespace, "-o", "json")


@pytest.fixture
def collector_paused(team: Team) -> Iterator[None]:
    """Has requests stay whose owner is gone; else they go with it, sooner or later."""
    with Volumes(team.cluster).controllers_paused():
        yield


def of_an_earlier_pod(team: Team, node: str) -> None:
    """A request whose pod was made anew; the new one has none of its own."""
    former = team.cluster.pod("train")
    team.cluster.delete_pod("train")
    team.cluster.pod("train")
    stranger = {"metadata": {"name": "train", "uid": former["metadata"]["uid"]}}
    team.cluster.ask("train", node, owner=stranger)
    team.cluster.patch_status("train", FAILED)


@pytest.mark.usefixtures("collector_paused")
def test_a_bound_pod_beside_the_request_of_an_earlier_one(team: Team) -> None:
    node = team.node()
    of_an_earlier_pod(team, node)
    team.cluster.bind_by_hand("train", node)
    for name in ("train", "pod/train"):
        told = asked(team, name)
        assert (told.code, told.json["verdict"]) == (0, "bound"), told
        assert told.json["request"] is None
        assert told.json["notes"] == ["BindRequest train was made for an earlier pod of this name."]
        assert "PodReplaced" not in told.out
    told = asked(team, "br/train")
    assert (told.code, told.json["verdict"]) == (1, "notBound")
    assert [item["reason"] for item in told.json["advice"]] == ["PodReplaced"]


@pytest.mark.usefixtures("collector_paused")
def test_a_pod_without_a_request_beside_that_of_an_earlier_one(team: Team) -> None:
    of_an_earlier_pod(team, team.node())
    told = asked(team, "pod/train")
    assert (told.code, told.json["request"]) == (1, None)
    assert [item["reason"] for item in told.json["advice"]] == ["PodReplaced", "NoRequest"]
    delete = f"kubectl delete bindrequest train -n {team.cluster.namespace}"
    assert told.json["advice"][0]["steps"][0].endswith(delete)
    assert asked(team, "train").json["request"]["name"] == "train"


@pytest.mark.usefixtures("collector_paused")
def test_the_pods_own_request_comes_before_that_of_its_name(team: Team) -> None:
    node = team.node()
    of_an_earlier_pod(team, node)
    own = team.cluster.get_pod("train")
    team.cluster.ask("train-2", node, owner=own, podName="train")
    for name in ("train", "pod/train"):
        assert asked(team, name).json["request"]["name"] == "train-2"


def test_a_pod_that_is_bound_between_two_reads(team: Team, proxy: Proxy, control_plane: ControlPlane) -> None:
    """The pod is read, then it is bound and its request succeeds, then the request is read."""
    node = team.node()
    team.cluster.pod_and_request("train", node)
    reader(team, "kube-system")
    kubeconfig = proxy.kubeconfig(control_plane.token("kube-system", "default"))

    done: list[Call] = []

    def bind(call: Call) -> bool:
        if not done:
            done.append(call)
            team.cluster.bind_by_hand("train", node)
            team.cluster.patch_status("train", {"phase": "Succeeded"})
        return True

    with proxy.rule(Rule(Delay(0), method="GET", path="/bindrequests", where=bind)):
        told = explain(kubeconfig, f"{team.cluster.namespace}/pod/train", "-o", "json")
    assert done
    assert (told.code, told.json["verdict"]) == (0, "bound"), told
    assert told.json["pod"]["node"] == node
