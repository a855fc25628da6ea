"""Public reports about failures that come again: how often, how they are told, what they wake."""

import time

from controller.runtime.client import Object
from tests.cases.conftest import Shared
from tests.cluster import Cluster, Phases
from tests.polling import wait_until
from tests.proxy import Answer

BINDING = "pods/.*/binding$"
STATUS = "bindrequests/.*/status$"


def test_kai_2075_2155_attempts_are_counted_spaced_and_never_told_as_bound(
    shared: Shared, cluster: Cluster
) -> None:
    """Also KAI PR #1229: our own writes, and a changed label, start no attempt."""
    with cluster.bindings_denied():
        cluster.pod_and_request("a", cluster.node(), backoffLimit=4)
        cluster.pod_and_request("b", cluster.node(), backoffLimit=4)
        phases = Phases(cluster)
        for number in range(11):
            phases.follow(0.95)
            cluster.patch_request("b", {"metadata": {"labels": {"touched": str(number)}}})
            condition = cluster.pod_bound("a")
            assert condition is None or condition["status"] == "False"
            bound = cluster.conditions("a").get("Bound")
            assert bound is None or bound["status"] == "False"
    for name in ("a", "b"):
        assert cluster.status(name)["failedAttempts"] == 4
        assert phases.seen[name] <= {"", "Failed"}
        shared.binder.assert_spaced(f"{cluster.namespace}/{name}", [1.0, 2.0, 4.0])
        assert shared.count(cluster, "POST", f"pods/{name}/binding$") == 4
        assert shared.count(cluster, "PATCH", f"bindrequests/{name}/status$") == 4
        assert cluster.events(name, reason="Bound") == []
        assert cluster.events(name, reason="BindingError")[0]["count"] == 4
        assert len(cluster.events(name)) == 1
        cluster.assert_unbound(name)


def test_kopf_pr_509_a_rejected_status_is_written_again_with_back_off(
    shared: Shared, cluster: Cluster
) -> None:
    with shared.proxy.rule(shared.rule(cluster, Answer(422), "PATCH", STATUS)) as rejected:
        cluster.pod_and_request("a", cluster.node())
        wait_until(lambda: rejected.count >= 1)
        time.sleep(5.5)
        assert 2 <= rejected.count <= 4
    cluster.wait_for("a", "Succeeded", within_s=15)
    assert shared.count(cluster, "POST", BINDING) == 1, "the bind was repeated"


def test_kopf_pr_509_a_message_of_40_kb_is_cut_and_stored(shared: Shared, cluster: Cluster) -> None:
    message = "ä€🙂" * 5000
    body: Object = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403}
    refusal = Answer(403, {**body, "message": message, "reason": "Forbidden"})
    with shared.proxy.rule(shared.rule(cluster, refusal, "POST", BINDING)):
        cluster.pod_and_request("a", cluster.node())
        status = cluster.wait_for("a", "Failed")
    bound = cluster.conditions("a")["Bound"]
    condition = cluster.pod_bound("a") or {}
    event = cluster.wait_for_event("a", "BindingError")
    cluster.wait_for_event("a", "Forbidden", "BindRequest")
    for text in (status["reason"], bound["message"], condition["message"], event["message"]):
        assert text.endswith("…")
        assert len(text.encode()) <= 4096
        assert "ä€🙂ä€🙂" in text
        assert "\N{REPLACEMENT CHARACTER}" not in text
    assert len(event["message"].encode()) <= 1024
    assert shared.count(cluster, "PATCH", STATUS) == 1
