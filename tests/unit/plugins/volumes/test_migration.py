"""F-9: in-tree volumes, read in the words of the CSI drivers that serve them."""

import pytest

from controller.plugins.volumes.model import Place, Volume
from controller.runtime.client import Object

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
OLD_ZONE, OLD_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
EBS = ("awsElasticBlockStore", "kubernetes.io/aws-ebs", "topology.ebs.csi.aws.com/zone")
PD = ("gcePersistentDisk", "kubernetes.io/gce-pd", "topology.gke.io/zone")
CINDER = ("cinder", "kubernetes.io/cinder", "topology.cinder.csi.openstack.org/zone")
AZURE = ("azureDisk", "kubernetes.io/azure-disk", "topology.disk.csi.azure.com/zone")
VSPHERE = ("vsphereVolume", "kubernetes.io/vsphere-volume", "topology.csi.vmware.com/zone")


def volume(source: str, labels: dict[str, str] | None = None, **wanted: str) -> Volume:
    """An in-tree volume; `wanted` is what its node affinity asks for."""
    keys = {"zone": ZONE, "region": REGION, "old_zone": OLD_ZONE, "old_region": OLD_REGION, "disk": "disk"}
    spec: Object = {source: {}}
    if wanted:
        found = [
            {"key": keys[key], "operator": "In", "values": value.split(",")} for key, value in wanted.items()
        ]
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": found}]}}
    return Volume.of({"metadata": {"name": "v", "labels": labels or {}}, "spec": spec})


def on(plugin: str, labels: dict[str, str]) -> Place:
    return Place({"metadata": {"name": "n", "labels": labels}}, frozenset({plugin}))


@pytest.mark.parametrize(("source", "plugin", "key"), [EBS, PD, CINDER, AZURE, VSPHERE])
@pytest.mark.parametrize("word", ["zone", "old_zone"])
def test_a_zone_is_the_drivers_zone(source: str, plugin: str, key: str, word: str) -> None:
    made = volume(source, zone="a,b") if word == "zone" else volume(source, old_zone="a,b")
    assert on(plugin, {key: "a"}).reaches(made)
    assert on(plugin, {key: "b"}).reaches(made)
    assert not on(plugin, {key: "c"}).reaches(made)
    assert not on(plugin, {}).reaches(made)
    assert not on("another", {key: "a"}).reaches(made)
    assert on(plugin, {key: "c"}).demands(made) == f"{key} In a,b"


@pytest.mark.parametrize(("source", "plugin", "key"), [EBS, PD, CINDER, AZURE, VSPHERE])
@pytest.mark.parametrize("label", [ZONE, OLD_ZONE])
def test_a_zone_that_stands_in_a_label_of_the_volume(source: str, plugin: str, key: str, label: str) -> None:
    made = volume(source, {label: "a"}, disk="ssd")
    assert on(plugin, {key: "a", "disk": "ssd"}).reaches(made)
    assert not on(plugin, {key: "a", "disk": "hdd"}).reaches(made)
    bare = volume(source, {label: "a"})
    assert on(plugin, {key: "a"}).reaches(bare)
    assert on("another", {}).reaches(bare), "without the driver the label means nothing"


@pytest.mark.parametrize(("source", "plugin", "key"), [EBS, PD, CINDER])
def test_only_the_drivers_labels_count_where_the_scheduler_translates(
    source: str, plugin: str, key: str
) -> None:
    made = volume(source, old_zone="a")
    assert not on(plugin, {OLD_ZONE: "a"}).reaches(made)
    assert not on(plugin, {OLD_ZONE: "a", key: "b"}).reaches(made)
    assert not on(plugin, {key: "b"}).reaches(volume(source, {ZONE: "a"}))
    assert on(plugin, {key: "b"}).reaches(volume(source, {ZONE: "a__b"})), "a volume may be in two zones"


@pytest.mark.parametrize(("source", "plugin", "key"), [AZURE, VSPHERE])
def test_either_will_do_where_it_does_not(source: str, plugin: str, key: str) -> None:
    made = volume(source, old_zone="a")
    assert on(plugin, {OLD_ZONE: "a"}).reaches(made)
    assert on(plugin, {key: "a"}).reaches(made)
    assert not on(plugin, {OLD_ZONE: "b", key: "b"}).reaches(made)


def test_todays_labels_win_over_those_of_old() -> None:
    source, plugin, key = EBS
    made = volume(source, {OLD_ZONE: "b"}, zone="a")
    assert on(plugin, {key: "a"}).reaches(made)
    assert not on(plugin, {key: "b"}).reaches(made)


def test_an_old_region_is_todays() -> None:
    source, plugin, key = EBS
    made = volume(source, old_zone="a", old_region="r")
    assert on(plugin, {key: "a", REGION: "r"}).reaches(made)
    assert not on(plugin, {key: "a", REGION: "s"}).reaches(made)
    assert not on(plugin, {key: "a", OLD_REGION: "r"}).reaches(made)


def test_vsphere_has_regions_of_its_own() -> None:
    source, plugin, key = VSPHERE
    region = "topology.csi.vmware.com/region"
    made = volume(source, old_zone="a", old_region="r")
    assert on(plugin, {key: "a", region: "r"}).reaches(made)
    assert not on(plugin, {key: "a", region: "s"}).reaches(made)
    labelled = volume(source, {ZONE: "a", REGION: "r"}, disk="ssd")
    assert on(plugin, {key: "a", region: "r", "disk": "ssd"}).reaches(labelled)


@pytest.mark.parametrize("source", ["csi", "hostPath", "azureFile", "portworxVolume", "nfs"])
def test_a_volume_without_a_topology_of_its_own_is_left_alone(source: str) -> None:
    made = volume(source, old_zone="a")
    assert made.source == ""
    every = frozenset(plugin for _, plugin, _ in (EBS, PD, CINDER, AZURE, VSPHERE))
    assert Place({"metadata": {"name": "n", "labels": {OLD_ZONE: "a"}}}, every).reaches(made)


def test_nothing_is_asked_for_where_nothing_depends_on_it() -> None:
    assert volume("awsElasticBlockStore", disk="ssd").source == ""
    assert volume("awsElasticBlockStore", old_zone="a").source == "awsElasticBlockStore"


def test_names_of_nodes_and_empty_terms_stay_as_they_are() -> None:
    source, plugin, key = EBS
    by_name = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}
    zone = {"matchExpressions": [{"key": OLD_ZONE, "operator": "In", "values": ["a"]}]}
    spec: Object = {
        source: {},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{**by_name, **zone}, {}]}},
    }
    made = Volume.of({"metadata": {"name": "v"}, "spec": spec})
    assert on(plugin, {key: "a"}).reaches(made)
    assert not on(plugin, {key: "b"}).reaches(made)
    assert spec["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0]["key"] == OLD_ZONE
