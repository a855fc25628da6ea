"""A binder with the limit turned on: what the container is told, and what is refused beforehand."""

import threading
from collections.abc import Sequence

import pytest

from controller.runtime.client import Object
from tests.features import LABELS_ARE_COPIED, is_on
from tests.limits import IN_MAP, LIMIT, ORDER, Limits, Seen
from tests.polling import wait_until
from tests.sharing import PodOptions, shared_pod


def test_the_limit_stands_beside_the_other_keys(cluster: Limits, seen: Seen) -> None:
    group = cluster.group()
    made = cluster.limited("a", cluster.card(), group)
    cluster.wait_for("a", "Succeeded")
    device = cluster.device(group)
    found = cluster.config_map("a-shared-gpu-0")
    assert found["data"] == {
        "CUDA_DEVICE_MEMORY_LIMIT": "7680m",
        "GPU_PORTION": "0.50",
        "NVIDIA_VISIBLE_DEVICES": device,
        "RUNAI_NUM_OF_GPUS": "0.50",
    }
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", "a", made["metadata"]["uid"])
    assert cluster.data("a-shared-gpu-0-evar") == {}
    assert cluster.node_of("a") is not None

    conditions = cluster.conditions("a")
    assert tuple(conditions) == ORDER
    condition = conditions["GPUMemoryLimit"]
    assert (condition["status"], condition["reason"]) == ("True", "Reconciled")
    assert condition["message"] == (
        "7680 MiB, 0.5 of the card, from gpu-fraction; the card has 15360 MiB by its label"
    )


def test_each_map_is_written_whole_in_one_request(cluster: Limits, seen: Seen) -> None:
    group, node = cluster.group(), cluster.card()
    for name in ("a", "b"):
        cluster.limited(name, node, group)
        cluster.wait_for(name, "Succeeded")
    here = f"/api/v1/namespaces/{cluster.namespace}"
    made = [line for line in seen.writes(cluster) if line.startswith(f"POST {here}")]
    assert sorted(made) == sorted(
        [f"POST {here}/configmaps"] * 4 + [f"POST {here}/pods/{name}/binding" for name in ("a", "b")]
    )
    touched = [line for line in seen.writes(cluster) if here in line and not line.startswith("POST")]
    labelled = (
        [] if is_on(cluster.plane, LABELS_ARE_COPIED) else [f"PATCH {here}/pods/{name}" for name in "ab"]
    )
    assert touched == labelled
    assert cluster.limit("a") == cluster.limit("b") == "7680m"
    assert cluster.device(group) == cluster.data("b-shared-gpu-0")["NVIDIA_VISIBLE_DEVICES"]


def test_one_missing_variable_moves_the_limit_to_the_map_that_is_read_whole(
    cluster: Limits, seen: Seen
) -> None:
    # A pod from before the webhook knew of the limit, or a webhook that does not.
    cluster.share("a", cluster.card(), cluster.group())
    cluster.wait_for("a", "Succeeded")
    assert cluster.data("a-shared-gpu-0-evar") == {LIMIT: "7680m"}
    assert LIMIT not in cluster.data("a-shared-gpu-0")


@pytest.mark.parametrize(
    ("options", "maps"),
    [
        ({"containers": ("first", "second"), "target": "second"}, "1"),
        ({"containers": ("first",), "init": ("warm-up", "other"), "target": "other"}, "i1"),
    ],
    ids=["a named container", "an init container"],
)
def test_only_the_container_with_the_share(
    cluster: Limits, seen: Seen, options: PodOptions, maps: str
) -> None:
    cluster.limited("a", cluster.card(), pod=options)
    cluster.wait_for("a", "Succeeded")
    assert cluster.limit("a", maps) == "7680m"
    assert cluster.all_config_maps() == [f"a-shared-gpu-{maps}", f"a-shared-gpu-{maps}-evar"]


def test_two_devices_have_the_limit_each(cluster: Limits, seen: Seen) -> None:
    node = cluster.card()
    cluster.limited("a", node, cluster.group(), cluster.group(), portion="0.14", pod={"memory": "2000"})
    cluster.limited("b", node, cluster.group(), cluster.group(), pod={"fraction": "0.5"})
    cluster.wait_for("a", "Succeeded")
    cluster.wait_for("b", "Succeeded")
    assert (cluster.limit("a"), cluster.limit("b")) == ("2000m", "7680m")
    assert len(cluster.data("a-shared-gpu-0")["NVIDIA_VISIBLE_DEVICES"].split(",")) == 2


def test_what_is_no_share_is_not_its_business(cluster: Limits, seen: Seen) -> None:
    node = cluster.card(None)
    for name, kind in (("cpu", "Regular"), ("mig", "MigInstance"), ("untyped", "")):
        cluster.pod_and_request(name, node, receivedResourceType=kind)
        cluster.wait_for(name, "Succeeded")
        condition = cluster.conditions(name)["GPUMemoryLimit"]
        assert (condition["status"], condition["reason"]) == ("True", "NotApplicable")
    assert cluster.all_config_maps() == []


# Refused before anything is touched


REFUSED: dict[str, tuple[str | None, PodOptions, str, str, tuple[str, ...]]] = {
    "unknown": (None, {}, "0.50", "MemoryUnknown", (" nvidia.com/gpu.memory", "fallbackMemoryMiB")),
    "bad-label": ("8000Mi", {}, "0.50", "InvalidNodeMemory", ("'8000Mi'", "nvidia.com/gpu.memory")),
    "units": ("15360", {"memory": "4Gi"}, "0.27", "InvalidGPUMemory", ("gpu-memory", "'4Gi'", "/units ")),
    "excess": ("15360", {"memory": "15361"}, "1.00", "MemoryExceedsCard", ("15361 MiB", "15360 MiB")),
    "raised": (
        "15360",
        {"memory": "15360"},
        "0.10",
        "MemoryExceedsGrant",
        ("15360 MiB", "0.10 ", "1690 MiB"),
    ),
    "tiny": ("15360", {"fraction": None}, "0.00006", "MemoryTooSmall", ("less than 1 MiB", "/tiny ")),
    "half": ("15360", {"fraction": "half"}, "0.50", "InvalidPortion", ("gpu-fraction", "'half'", "/half ")),
    "literal": ("15360", {}, "0.50", "LimitNotDelivered", ("container main", "/literal ", LIMIT)),
}


def test_a_limit_that_fails_stops_the_bind_before_anything_is_reserved_or_written(
    cluster: Limits, seen: Seen
) -> None:
    groups = {name: cluster.group() for name in REFUSED}
    for name, (label, options, portion, _, _) in REFUSED.items():
        node = cluster.card(label)
        if name == "literal":
            body = shared_pod(name)
            body["spec"]["containers"][0]["env"].append({"name": LIMIT, "value": "0m"})
            made = cluster.plane.request("POST", cluster.pods, body)
            cluster.ask_share(name, node, groups[name], owner=made)
        else:
            cluster.limited(name, node, groups[name], portion=portion, pod=options)
    for name, (_, _, _, reason, words) in REFUSED.items():
        message = cluster.refusal(name, reason)
        assert [word for word in words if word not in message] == [], message
        assert cluster.status(name)["failedAttempts"] == 1
    assert [line for line in seen.writes(cluster) if cluster.namespace in line] == []
    assert cluster.all_config_maps() == []
    assert [name for name in REFUSED if cluster.reservations(groups[name])] == []


@pytest.mark.parametrize(
    ("env_from", "words"),
    [
        ([], ("from no ConfigMap", "a-shared-gpu-0-evar")),
        ([("a-shared-gpu-0-evar", "X_")], ("from no ConfigMap",)),
        ([("a-shared-gpu-0-evar", ""), ("mine", "")], ("ConfigMap mine", "after a-shared-gpu-0-evar")),
    ],
    ids=["none", "prefix", "replaced"],
)
def test_a_limit_that_the_container_would_not_read(
    cluster: Limits, seen: Seen, env_from: list[tuple[str, str]], words: tuple[str, ...]
) -> None:
    sources = [{"configMapRef": {"name": name}, "prefix": prefix} for name, prefix in env_from]
    container = {"name": "main", "image": "busybox", "envFrom": sources}
    annotations = {"gpu-fraction": "0.5", "runai/shared-gpu-configmap": "a-shared-gpu"}
    made = cluster.pod("a", annotations=annotations, containers=[container])
    cluster.ask_share("a", cluster.card(), cluster.group(), owner=made)
    message = cluster.refusal("a", "LimitNotDelivered")
    assert [word for word in (*words, "container main", "/a ", LIMIT) if word not in message] == [], message


def with_environment(cluster: Limits, name: str, *env: Object, env_from: Sequence[Object] = ()) -> Object:
    """Makes a pod as KAI's webhook leaves one that has something of its own in its environment."""
    body = shared_pod(name, in_map=IN_MAP)
    (container,) = body["spec"]["containers"]
    container["env"] += env
    container["envFrom"] = [*env_from, *container["envFrom"]]
    return cluster.plane.request("POST", cluster.pods, body)


SECRET = {"secretRef": {"name": "mine", "optional": True}}
WAYS: dict[str, tuple[Object, str]] = {
    "all": (
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        "sets NVIDIA_VISIBLE_DEVICES itself to 'all', so that it may use more than its share",
    ),
    "off": (
        {"name": "CUDA_DISABLE_CONTROL", "value": "true"},
        "sets CUDA_DISABLE_CONTROL itself to 'true', which switches the limiter off",
    ),
    "legacy": (
        {
            "name": LIMIT,
            "valueFrom": {"configMapKeyRef": {"name": "legacy-shared-gpu-0", "key": "RUNAI-VISIBLE-DEVICES"}},
        },
        f"takes {LIMIT} from key RUNAI-VISIBLE-DEVICES of ConfigMap legacy-shared-gpu-0, "
        "which holds something else",
    ),
    "of-one": ({"name": f"{LIMIT}_0", "value": "100g"}, f"sets {LIMIT}_0 itself, which goes before {LIMIT}"),
}


def test_ways_past_the_limit(cluster: Limits, seen: Seen) -> None:
    """F-31, F-32."""
    group = cluster.group()
    for name, (entry, _) in WAYS.items():
        made = with_environment(cluster, name, entry)
        cluster.ask_share(name, cluster.card(), group, owner=made)
    for name, (_, why) in WAYS.items():
        text = f"container main of pod {cluster.namespace}/{name} {why}"
        assert cluster.refusal(name, "LimitNotDelivered") == text
    assert cluster.reservations(group) == []
    assert cluster.all_config_maps() == []


def test_what_others_say_before_is_replaced(cluster: Limits, seen: Seen) -> None:
    """F-31: a Secret cannot be read by the binder, and may change when it likes."""
    made = with_environment(
        cluster, "a", {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"}, env_from=[SECRET]
    )
    cluster.ask_share("a", cluster.card(), cluster.group(), owner=made)
    cluster.wait_for("a", "Succeeded")
    assert cluster.limit("a") == "7680m"
    assert cluster.data("a-shared-gpu-0-evar") == {
        f"{LIMIT}_0": "7680m",
        "CUDA_DISABLE_CONTROL": "false",
        "CUDA_REDIRECT": "",
    }


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_another_container_that_sees_the_gpu(cluster: Limits, seen: Seen, kind: str) -> None:
    """F-31, F-32: the values are seen of pods in the cache, too."""
    bodies = {name: shared_pod(name, in_map=IN_MAP) for name in ("bad", "good")}
    for name, value in (("bad", "all"), ("good", "void")):
        env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}, {"name": "X", "value": "y"}]
        other = {"name": "other", "image": "busybox", "env": env}
        bodies[name]["spec"].setdefault(kind, []).append(other)
        made = cluster.plane.request("POST", cluster.pods, bodies[name])
        cluster.ask_share(name, cluster.card(), cluster.group(), owner=made)
    cluster.wait_for("good", "Succeeded")
    assert cluster.limit("good") == "7680m"
    assert "Warning" not in cluster.conditions("good")["GPUSharing"]["message"]
    assert cluster.refusal("bad", "LimitNotDelivered") == (
        f"container other of pod {cluster.namespace}/bad sees the GPU as well, and sets "
        "NVIDIA_VISIBLE_DEVICES itself to 'all', so that it may use more than its share"
    )


def test_an_amount_that_is_raised_between_attempts(cluster: Limits, seen: Seen) -> None:
    """F-30: refused for as long as it is more than was granted."""
    node = cluster.card()
    with cluster.bindings_denied():
        cluster.limited("a", node, pod={"memory": "1536"}, portion="0.10", backoffLimit=10)
        cluster.wait_for_attempts("a", 1)
        cluster.annotate("a", {"gpu-memory": "15360"})
    status = wait_until(lambda: reason_of(cluster, "a", "GPUMemoryLimit MemoryExceedsGrant: "), within_s=30)
    assert "asks for 15360 MiB, more than the request grants: portion 0.10 is at most 1690 MiB" in status
    cluster.assert_unbound("a")
    cluster.annotate("a", {"gpu-memory": "1536"})
    cluster.wait_for("a", "Succeeded", within_s=60)
    assert cluster.limit("a") == "1536m"


def reason_of(cluster: Limits, name: str, head: str) -> str:
    reason = str(cluster.status(name).get("reason", ""))
    assert reason.startswith(head), reason
    return reason


def test_a_value_of_100_kb_is_named_and_cut(cluster: Limits, seen: Seen) -> None:
    cluster.limited("a", cluster.card(), pod={"memory": "9" * 100_000})
    cluster.limited("b", cluster.card(), portion="1" * 100_000)
    assert len(cluster.refusal("a", "InvalidGPUMemory")) < 300
    assert len(cluster.refusal("b", "InvalidPortion", "GPUSharing")) < 300
    cluster.limited("c", cluster.card())
    cluster.wait_for("c", "Succeeded")


# Again


def test_memory_that_is_unknown_is_tried_again_and_other_faults_are_not(cluster: Limits, seen: Seen) -> None:
    bare, node = cluster.card(None), cluster.card()
    cluster.limited("unknown", bare, backoffLimit=3)
    cluster.limited("units", node, pod={"memory": "4Gi"}, backoffLimit=5)
    cluster.limited("excess", node, pod={"memory": "20000"}, backoffLimit=5)
    for name in ("units", "excess"):
        cluster.wait_for(name, "Failed")
        # All at once: the scheduler must not wait for attempts that will not come.
        assert cluster.status(name)["failedAttempts"] == 5
        path = f"/namespaces/{cluster.namespace}/bindrequests/{name}/status"
        assert seen.proxy.count("PATCH", path) == 1
    assert cluster.wait_for_attempts("unknown", 1)["phase"] == "Failed"
    status = cluster.wait_for_attempts("unknown", 3, within_s=20)
    assert status["failedAttempts"] == 3
    assert seen.proxy.count("PATCH", f"/namespaces/{cluster.namespace}/bindrequests/unknown/status") == 3
    events = cluster.events("unknown", "BindRequest", reason="MemoryUnknown")
    assert [item.get("count", 1) for item in events] == [1]  # news once, not once for each attempt


def test_a_label_that_comes_later_is_seen_without_a_restart(cluster: Limits, seen: Seen) -> None:
    node = cluster.card(None)
    cluster.limited("a", node, backoffLimit=6)
    cluster.wait_for_attempts("a", 1)
    assert cluster.conditions("a")["GPUMemoryLimit"]["reason"] == "MemoryUnknown"
    cluster.label(node, "15360")
    status = cluster.wait_for("a", "Succeeded", within_s=30)
    assert status["failedAttempts"] < 6
    assert "reason" not in status
    assert cluster.limit("a") == "7680m"
    assert cluster.conditions("a")["GPUMemoryLimit"]["status"] == "True"


def test_a_label_that_is_mended_is_seen(cluster: Limits, seen: Seen) -> None:
    node = cluster.card("8000Mi")
    cluster.limited("a", node, backoffLimit=6)
    cluster.wait_for_attempts("a", 1)
    cluster.label(node, "17179869184")
    cluster.wait_for("a", "Succeeded", within_s=30)
    assert cluster.limit("a") == "8192m"


def test_a_label_that_changes_between_attempts_is_read_anew(cluster: Limits, seen: Seen) -> None:
    node, group = cluster.card("15360"), cluster.group()
    with cluster.bindings_denied():
        cluster.limited("a", node, group, backoffLimit=8)
        cluster.wait_for_attempts("a", 1)
        assert cluster.status("a")["reason"].startswith("Bound Forbidden: ")
        assert "15360 MiB" in cluster.conditions("a")["GPUMemoryLimit"]["message"]
        cluster.label(node, "16384")
    cluster.wait_for("a", "Succeeded", within_s=40)
    assert cluster.limit("a") == "8192m"
    assert "16384 MiB" in cluster.conditions("a")["GPUMemoryLimit"]["message"]


def test_a_label_that_flips_gives_one_or_the_other_limit(cluster: Limits, seen: Seen) -> None:
    node, group, stop = cluster.card("15360"), cluster.group(), threading.Event()
    flips: list[str] = []

    def flip() -> None:
        while not stop.wait(0.02):
            flips.append("16384" if len(flips) % 2 == 0 else "15360")
            cluster.label(node, flips[-1])

    thread = threading.Thread(target=flip)
    thread.start()
    names = [f"a-{number}" for number in range(12)]
    try:
        for name in names:
            cluster.limited(name, node, group)
        for name in names:
            cluster.wait_for(name, "Succeeded", within_s=30)
        wait_until(lambda: len(flips) >= 20, within_s=30)
    finally:
        stop.set()
        thread.join()
    for name in names:
        message = cluster.conditions(name)["GPUMemoryLimit"]["message"]
        told = {"7680m": "7680 MiB, 0.5 of the card", "8192m": "8192 MiB, 0.5 of the card"}
        card = {"7680m": "15360 MiB by its label", "8192m": "16384 MiB by its label"}
        limit = str(cluster.limit(name))
        assert message.startswith(told[limit])
        assert message.endswith(card[limit])


def test_a_map_that_is_left_over_gets_the_right_limit(cluster: Limits, seen: Seen) -> None:
    # As a binder that was killed leaves it, or the Go binder, with its own idea of the limit.
    made = cluster.shared_pod("a", memory="4096", in_map=IN_MAP)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": made["metadata"]["uid"]}
    body = {
        "metadata": {"name": "a-shared-gpu-0", "ownerReferences": [owner]},
        "data": {LIMIT: "0m", "GPU_PORTION": "0.99"},
    }
    cluster.plane.request("POST", cluster.config_maps, body)
    cluster.ask_share("a", cluster.card(), cluster.group(), owner=made, portion="0.27")
    cluster.wait_for("a", "Succeeded")
    assert cluster.limit("a") == "4096m"
    assert cluster.data("a-shared-gpu-0")["GPU_PORTION"] == "0.27"
