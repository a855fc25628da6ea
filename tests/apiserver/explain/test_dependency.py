"""A memory limit that is on while what it needs is off: `explain` says what to set."""

from tests.apiserver.explain.conftest import Team
from tests.binder import Binders
from tests.limits import CARD, ENABLED, IN_MAP

OFF = {"BINDER_PLUGINS__GPUSHARING__ENABLED": "false"}


def test_a_plugin_whose_needs_are_not_met(team: Team, binders: Binders) -> None:
    running = binders.start(env={**ENABLED, **OFF})
    node, group = team.node(labels={CARD: "15360"}), team.group()
    team.cluster.share("train", node, group, pod={"in_map": IN_MAP})
    team.cluster.wait_for("train", "Failed")
    told = team.check("dependency")
    assert "BINDER_PLUGINS__GPUSHARING__ENABLED=true" in told.json["steps"][-1]["message"]
    running.stop()
    binders.start(env={**ENABLED, "BINDER_PLUGINS__GPUSHARING__ENABLED": "true"})
    team.do(told, "kubectl delete bindrequest")
    team.cluster.ask_share("train", node, group, owner=team.cluster.get_pod("train"))
    team.wait_until_bound()
