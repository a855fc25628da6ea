"""The lines of the log that docs/install.md shows are those of a running binder."""

import re

from tests.apiserver.docs.pages import section
from tests.binder import Binder
from tests.cluster import Cluster
from tests.polling import wait_until

TIME = r"\d{4}-\d\d-\d\dT[\d:.]+Z"


def test_a_bind_and_a_failure_look_so(binder: Binder, cluster: Cluster) -> None:
    shown = re.findall(rf"^{TIME} (.+)$", section("docs/install.md", "Is it well?"), re.MULTILINE)
    assert len(shown) == 2
    node = cluster.node()
    cluster.pod_and_request("cpu", node)
    cluster.pod_and_request("unknown-node", "no-such-node", backoffLimit=8)
    cluster.wait_for("cpu", "Succeeded", within_s=30)
    cluster.wait_for_attempts("unknown-node", 1, within_s=30)

    def said() -> set[str]:
        text = binder.log.replace(cluster.namespace, "default").replace(node, "gpu-node-1")
        return {line for line in re.findall(rf"^{TIME} (.+)$", text, re.MULTILINE) if line in shown}

    wait_until(lambda: said() == set(shown))
