"""What is chosen does not depend on the order in which it was listed, and is the best by the rule."""

from collections import Counter
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from controller.kai.nodepool import WHOLE
from controller.kai.outcome import Failed
from controller.kai.sharing import group_labels, groups_of_pod
from controller.plugins.base import BindContext, Outcome, Plugin, Ready
from controller.plugins.config import PluginConfig
from controller.plugins.registry import resolve
from controller.plugins.volumes.matching import choose, obstacle
from controller.plugins.volumes.model import Claim, Place, Volume
from controller.reservation.devices import chosen as chosen_of
from controller.reservation.members import GroupCaches, Members
from controller.reservation.shard import Shard
from controller.reservation.usage import Usage
from controller.runtime.client import Object
from tests.unit.model.worlds import GROUP, NODE, OPTIONS, Server, Shelf, World, at_once
from tests.unit.properties.profile import examples

NAMES = ("ann", "bob", "cat", "dan")


class _Plugin(Plugin):
    def concerns(self, context: BindContext) -> bool:
        return True

    async def pre_bind(self, context: BindContext) -> Outcome:
        return Ready()


@st.composite
def plugins(draw: st.DrawFn) -> list[type[Plugin]]:
    chosen = draw(st.lists(st.sampled_from(NAMES), unique=True))
    made: list[type[Plugin]] = []
    for name in chosen:
        attributes: dict[str, Any] = {
            "name": name,
            "condition_type": name.title(),
            "priority": draw(st.integers(-2, 2)),
            "enabled": draw(st.booleans()),
            "requires": tuple(draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=2))),
        }
        made.append(type(name, (_Plugin,), attributes))
    return made


CONFIGS = st.dictionaries(
    st.sampled_from(NAMES),
    st.builds(
        PluginConfig,
        enabled=st.one_of(st.none(), st.booleans()),
        priority=st.one_of(st.none(), st.integers(-2, 2)),
    ),
)


@examples
@given(plugins(), CONFIGS, st.randoms(use_true_random=False))
def test_plugins_run_by_priority_and_know_what_they_lack(
    classes: list[type[Plugin]],
    configs: dict[str, PluginConfig],
    chance: Any,  # noqa: ANN401
) -> None:
    settings = {name: config for name, config in configs.items() if name in {cls.name for cls in classes}}
    plan = resolve(classes, settings)
    shuffled = chance.sample(classes, len(classes))
    assert resolve(shuffled, dict(reversed(settings.items()))) == plan
    on = {cls.name for cls in classes if _is_on(cls, settings.get(cls.name))}
    order = [item.cls.name for item in plan]
    assert sorted(order) == sorted(on)
    assert [(-item.priority, item.cls.name) for item in plan] == sorted(
        (-item.priority, item.cls.name) for item in plan
    )
    for item in plan:
        before = order[: order.index(item.cls.name)]
        assert (item.unmet is None) == all(name in before for name in item.cls.requires)


def _is_on(cls: type[Plugin], config: PluginConfig | None) -> bool:
    return cls.enabled if config is None or config.enabled is None else config.enabled


PLACE = Place({"metadata": {"name": "n", "labels": {}}})
CLAIM = Claim.of(
    {
        "metadata": {"name": "data", "namespace": "ns", "uid": "claim"},
        "spec": {
            "storageClassName": "c",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "3Gi"}},
        },
    }
)


def volume(number: int, gib: int, phase: str, mode: str) -> Volume:
    spec = {"storageClassName": "c", "capacity": {"storage": f"{gib}Gi"}, "accessModes": [mode]}
    metadata = {"name": f"v{number}", "uid": f"v{number}", "labels": {}}
    return Volume.of({"metadata": metadata, "spec": spec, "status": {"phase": phase}})


VOLUMES = st.lists(
    st.tuples(
        st.integers(1, 5),
        st.sampled_from(("Available", "Available", "Released")),
        st.sampled_from(("ReadWriteOnce", "ReadWriteOnce", "ReadOnlyMany")),
    ),
    max_size=8,
).map(lambda found: [volume(number, *each) for number, each in enumerate(found)])


@examples
@given(
    VOLUMES, st.dictionaries(st.integers(0, 7), st.sampled_from(("claim", "other")), max_size=3), st.data()
)
def test_the_smallest_volume_that_fits_is_chosen(
    volumes: list[Volume], promises: dict[int, str], data: st.DataObject
) -> None:
    ours = [number for number, uid in promises.items() if uid == "claim"]
    promised = {f"v{number}": uid for number, uid in promises.items() if uid != "claim" or number == ours[0]}
    found = choose(volumes, CLAIM, PLACE, promised)
    again = choose(data.draw(st.permutations(volumes)), CLAIM, PLACE, promised)
    assert found == again
    free = [item for item in volumes if promised.get(item.name, "claim") == "claim"]
    fitting = [item for item in free if obstacle(item, CLAIM, PLACE) is None]
    if isinstance(found, Counter):
        assert fitting == []
        assert found.total() == len(volumes), "each that does not do is told"
    else:
        assert found in fitting
        assert found.size >= Fraction(3 * 2**30)
        promise = [item for item in fitting if item.name in promised]
        assert found == (promise[0] if promise else min(fitting, key=lambda item: (item.size, item.name)))


def reservation(number: int, state: str, made: int) -> Object:
    annotations = {"run.ai/reserve_for_gpu_index": f"GPU-{number}"} if state != "silent" else {}
    metadata: Object = {"name": f"r{number}", "namespace": "reservations", "uid": f"u{number}"}
    metadata |= {"labels": {"runai-gpu-group": GROUP}, "annotations": annotations}
    metadata["creationTimestamp"] = f"2026-01-01T00:00:0{made}Z"
    if state == "going":
        metadata["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    phase = "Failed" if state == "ended" else "Running"
    return {"metadata": metadata, "spec": {"nodeName": NODE}, "status": {"phase": phase}}


RESERVATIONS = st.lists(
    st.tuples(st.sampled_from(("silent", "answered", "going", "ended")), st.integers(0, 9)), max_size=5
).map(lambda found: [reservation(number, *each) for number, each in enumerate(found)])


@examples
@given(RESERVATIONS, st.sets(st.integers(0, 4), max_size=2), st.data())
def test_the_reservation_that_counts(found: list[Object], removed: set[int], data: st.DataObject) -> None:
    """Of a group without users: one that has named its GPU, else the oldest; never one that goes."""

    def chosen(pods: list[Object]) -> tuple[Object | None, list[Object]]:
        usage, nothing = Usage(), Shelf((), lambda *_: ())
        for pod in found:
            if int(pod["metadata"]["uid"][1:]) in removed:
                with usage.removing(pod):
                    pass
        server = Server(World((), ()))
        shard = Shard(server, WHOLE, nothing)
        caches = GroupCaches(nothing, nothing, Shelf(pods, lambda *_: (GROUP,)), shard)
        members = Members(server, caches, OPTIONS, usage)
        kept, standing = at_once(members.find(GROUP, NODE)), members.standing(GROUP)
        assert kept is None or chosen_of(standing, ())[0] == kept
        return kept, chosen_of(standing, ())[1] if standing else []

    kept, rivals = chosen(found)
    again, _ = chosen(data.draw(st.permutations(found)))
    assert kept == again
    alive = [
        pod
        for pod in found
        if "deletionTimestamp" not in pod["metadata"]
        and pod["status"]["phase"] == "Running"
        and int(pod["metadata"]["uid"][1:]) not in removed
    ]
    assert (kept is None) == (not alive)
    if kept is not None:
        assert sorted(pod["metadata"]["name"] for pod in [kept, *rivals]) == sorted(
            pod["metadata"]["name"] for pod in alive
        )
        assert kept == min(
            alive,
            key=lambda pod: (
                not pod["metadata"]["annotations"],
                pod["metadata"]["creationTimestamp"],
                pod["metadata"]["name"],
            ),
        )


@examples
@given(
    st.lists(
        st.from_regex(r"[a-zA-Z0-9]([-a-z0-9_.]{0,61}[a-z0-9])?", fullmatch=True), unique=True, max_size=4
    )
)
def test_groups_come_back_from_their_labels(groups: list[str]) -> None:
    labels = group_labels({"metadata": {"name": "a", "namespace": "ns"}}, groups)
    assert not isinstance(labels, Failed)
    assert groups_of_pod({"metadata": {"labels": labels}}) == set(groups)
