"""In-tree volumes on nodes where a CSI driver serves them: their topology in that driver's words. Pure.

Such a volume was made when nodes had the labels of a cloud provider; a node whose CSINode says that the
plugin has migrated may have the driver's labels only. kube-scheduler judges the volume by these, and so do
we. The plugins of Azure Files and Portworx have no topology, and so nothing that could be put otherwise.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct

from controller.runtime.client import Object

MIGRATED_PLUGINS = "storage.alpha.kubernetes.io/migrated-plugins"
"""The annotation of a CSINode that names the plugins, separated by commas."""

_ZONE, _REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
_OLD_ZONE, _OLD_REGION = (f"failure-domain.beta.kubernetes.io/{part}" for part in ("zone", "region"))
_ZONE_SEPARATOR = "__"  # in a label of a volume that is in several


class _Migration(Struct, frozen=True):
    """How an in-tree plugin's topology reads in its CSI driver's labels.

    Attributes:
        plugin: The in-tree plugin, as a CSINode names it.
        zone: The driver's label for a zone.
        region: Its label for a region; empty if it has none.
        exclusive: Whether only the driver's labels count. kube-scheduler does not put the volumes of the
            others into other words: there, a node that fits either way will do.
    """

    plugin: str
    zone: str
    region: str = ""
    exclusive: bool = True


_MIGRATIONS: Mapping[str, _Migration] = {
    "awsElasticBlockStore": _Migration("kubernetes.io/aws-ebs", "topology.ebs.csi.aws.com/zone"),
    "gcePersistentDisk": _Migration("kubernetes.io/gce-pd", "topology.gke.io/zone"),
    "cinder": _Migration("kubernetes.io/cinder", "topology.cinder.csi.openstack.org/zone"),
    "azureDisk": _Migration("kubernetes.io/azure-disk", "topology.disk.csi.azure.com/zone", exclusive=False),
    "vsphereVolume": _Migration(
        "kubernetes.io/vsphere-volume",
        "topology.csi.vmware.com/zone",
        "topology.csi.vmware.com/region",
        exclusive=False,
    ),
}


def migratable_source(volume: Object) -> str:
    """The field of the spec by which a CSI driver may put the volume's topology otherwise; or empty."""
    found = next((source for source in _MIGRATIONS if volume["spec"].get(source) is not None), "")
    if not found:
        return ""
    labels: Mapping[str, str] = volume["metadata"].get("labels") or {}
    selector = (volume["spec"].get("nodeAffinity") or {}).get("required")
    keys = {item["key"] for item in _requirements(selector)} | labels.keys()
    return found if not keys.isdisjoint((_ZONE, _OLD_ZONE, _REGION, _OLD_REGION)) else ""


def selectors_on_node(
    source: str, selector: Object | None, labels: Mapping[str, str], migrated: Collection[str]
) -> Sequence[Object | None]:
    """The node selectors of which a node has to meet one, to be able to use a volume.

    Args:
        source: As `migratable_source` says.
        selector: The volume's own node affinity; None if it has none.
        labels: The volume's labels.
        migrated: The plugins that have migrated on the node.
    """
    migration = _MIGRATIONS.get(source)
    if migration is None or migration.plugin not in migrated:
        return (selector,)
    translated = _translated(migration, selector, labels)
    return (translated,) if migration.exclusive else (selector, translated)


def _translated(migration: _Migration, selector: Object | None, labels: Mapping[str, str]) -> Object | None:
    zone, region = _topology_labels(selector, labels)
    renamed: dict[str, str] = {}
    added: list[Object] = []
    if _values(selector, zone):
        renamed[zone] = migration.zone
    else:
        added += _required(migration.zone, labels.get(zone, "").split(_ZONE_SEPARATOR))
    if not migration.region:
        renamed[_OLD_REGION] = _REGION  # nodes do not have the old one any more
    elif _values(selector, region):
        renamed[region] = migration.region
    else:
        added += _required(migration.region, [labels.get(region, "")])
    if selector is None and not added:
        return None
    terms = (selector or {}).get("nodeSelectorTerms") or [{}]
    return {"nodeSelectorTerms": [_translated_term(term, renamed, added) for term in terms]}


def _translated_term(term: Object, renamed: Mapping[str, str], added: Sequence[Object]) -> Object:
    kept = [{**item, "key": renamed.get(item["key"], item["key"])} for item in _expressions(term)]
    return {**term, "matchExpressions": [*kept, *added]}


def _topology_labels(selector: Object | None, labels: Mapping[str, str]) -> tuple[str, str]:
    """The labels for zone and region that a volume speaks of: today's, or those of old."""
    keys = {item["key"] for item in _requirements(selector)}
    for known in (keys, labels):
        if _ZONE in known:
            return _ZONE, _REGION
        if _OLD_ZONE in known:
            return _OLD_ZONE, _OLD_REGION
    return _ZONE, _REGION


def _required(key: str, values: Sequence[str]) -> list[Object]:
    wanted = sorted({value.strip() for value in values} - {""})
    return [{"key": key, "operator": "In", "values": wanted}] if wanted else []


def _values(selector: Object | None, key: str) -> set[str]:
    return {
        value for item in _requirements(selector) if item["key"] == key for value in item.get("values") or ()
    }


def _requirements(selector: Object | None) -> Iterator[Object]:
    for term in (selector or {}).get("nodeSelectorTerms") or ():
        yield from _expressions(term)


def _expressions(term: Object) -> Sequence[Object]:
    return term.get("matchExpressions") or ()
