"""What volumebinding reads of the cluster, shared for a moment by all attempts of the process.

A name that no object can have is never asked for: nobody has it. Invariant: what is kept is small, however
many volumes there are, and forgotten after a moment.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Sized

from controller.kai.names import (
    CSI_CAPACITIES,
    CSI_DRIVERS,
    CSI_NODES,
    NODES,
    STORAGE_CLASSES,
    VOLUME_CLAIMS,
    VOLUMES,
    is_object_name,
)
from controller.plugins.volumes.matching import Capacity
from controller.plugins.volumes.migration import MIGRATED_PLUGINS
from controller.plugins.volumes.model import Alike, Claim, ClaimReference, Volume, claim_reference, class_name
from controller.plugins.volumes.shared import Name, Shared, SharedObjects
from controller.runtime import errors
from controller.runtime.client import Client, Object, Resource

_WHOLE_LIST_LIMIT = 1000
"""More objects are not listed to find a few of them by name."""

_PAGE_SIZE = 250
"""Volumes come with a lot that is not kept, so a page of them is the most that a list takes of the memory."""


class VolumeList:
    """The volumes of a moment; of those that are bound only the names are kept.

    What is taken in twice, as by a list that begins anew, counts once: as it was the last time.
    """

    def __init__(self) -> None:
        self._free: defaultdict[str, dict[str, Volume]] = defaultdict(dict)
        self._claimed: defaultdict[str, set[str]] = defaultdict(set)
        self._kept: dict[tuple[str, str], dict[str, Volume]] = {}
        self._bound: dict[str, str] = {}
        self._alike = Alike()

    def add(self, item: Object) -> None:
        """Takes in a volume that was listed."""
        reference, phase = item["spec"].get("claimRef"), (item.get("status") or {}).get("phase")
        if reference is None:
            volume = Volume.of(item, self._alike)
            self._claimed[volume.class_name].discard(volume.name)
            self._free[volume.class_name][volume.name] = volume
            return
        name, claim = str(item["metadata"]["name"]), claim_reference(reference)
        self._claim(self._alike.once(class_name(item)), name)
        if not claim.uid or phase not in ("Bound", "Released", "Failed"):
            self._keep(Volume.of(item, self._alike), claim)
        elif phase == "Bound":
            self._bound[claim.uid] = name

    def free(self, of_class: str) -> Collection[Volume]:
        """The volumes of a class that are kept for no claim."""
        return self._free[of_class].values() if of_class in self._free else ()

    def claimed(self, of_class: str) -> int:
        """How many volumes of a class are kept for some claim."""
        return len(self._claimed.get(of_class, ()))

    def kept_for(self, claim: Claim) -> list[Volume]:
        """The volumes that are kept for a claim, of whatever class, but not bound yet."""
        found = self._kept.get((claim.namespace, claim.short_name), {})
        return [volume for volume in found.values() if volume.tied_to(claim)]

    def bound_to(self, claim: Claim) -> str:
        """The name of the volume that is bound to a claim, even if the claim does not know yet; or empty."""
        return self._bound.get(claim.uid, "")

    def take(self, volume: Volume) -> None:
        """Takes in that a volume is kept for a claim by a write of ours."""
        self._claim(volume.class_name, volume.name)
        if volume.claim is not None:
            self._keep(volume, volume.claim)

    def _claim(self, of_class: str, name: str) -> None:
        self._free[of_class].pop(name, None)
        self._claimed[of_class].add(name)

    def _keep(self, volume: Volume, claim: ClaimReference) -> None:
        self._kept.setdefault((claim.namespace, claim.name), {})[volume.name] = volume


class _TooManyError(Exception):
    """There are more objects than are worth a list."""


class Reads:
    """Reads of claims, volumes and what else decides about them.

    Each method takes the moment before which its answer must not have been asked for, by anyio's clock; None
    for whatever is being shared. All raise `errors.ApiError` if the server does not say.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._claims = SharedObjects(self._read_claim, self._read_claims)
        self._volumes = SharedObjects(self._read_volume, self._read_volumes)
        self._lists = Shared(self._list_volumes)
        self._objects = Shared(self._read_object)
        self._capacities = Shared(self._list_capacities)

    async def claim(self, namespace: str, name: str, not_before_s: float | None = None) -> Claim | None:
        """A claim; None if there is none."""
        if not is_object_name(name):
            return None
        return await self._claims.get((namespace, name), not_before_s)

    async def volume(self, name: str, not_before_s: float | None = None) -> Volume | None:
        """A volume; None if there is none."""
        if not is_object_name(name):
            return None
        return await self._volumes.get(("", name), not_before_s)

    async def volumes(self, not_before_s: float | None = None) -> VolumeList:
        """The volumes that claims may be given."""
        return await self._lists.get(None, not_before_s)

    async def storage_class(self, name: str, not_before_s: float | None = None) -> Object | None:
        """A StorageClass; None if there is none."""
        return await self._object(STORAGE_CLASSES, name, not_before_s)

    async def tells_capacity(self, provisioner: str, not_before_s: float | None = None) -> bool:
        """Whether a provisioner is a CSI driver that tells of its capacities."""
        driver = await self._object(CSI_DRIVERS, provisioner, not_before_s)
        return driver is not None and bool((driver.get("spec") or {}).get("storageCapacity"))

    async def capacities(self, not_before_s: float | None = None) -> list[Capacity]:
        """What all CSI drivers tell of their capacities."""
        return await self._capacities.get(None, not_before_s)

    async def node_exists(self, name: str, not_before_s: float | None = None) -> bool:
        """Whether there is a node of this name."""
        return await self._object(NODES, name, not_before_s) is not None

    async def migrated_plugins(self, node: str, not_before_s: float | None = None) -> frozenset[str]:
        """The in-tree volume plugins that CSI drivers stand in for on a node."""
        found = await self._object(CSI_NODES, node, not_before_s)
        annotations = {} if found is None else found["metadata"].get("annotations") or {}
        return frozenset(str(annotations.get(MIGRATED_PLUGINS) or "").split(",")) - {""}

    def wrote_claim(self, claim: Claim) -> None:
        """Takes in the answer to a write of ours."""
        self._claims.put((claim.namespace, claim.short_name), claim)

    def wrote_volume(self, volume: Volume) -> None:
        """Takes in the answer to a write of ours, by which a volume is kept for a claim."""
        self._volumes.put(("", volume.name), volume)
        for listed in self._lists.known(None):
            listed.take(volume)

    def forget_old(self) -> None:
        """Drops what is not shared any more."""
        for kept in (self._claims, self._volumes, self._lists, self._objects, self._capacities):
            kept.forget_old()

    async def _object(self, resource: Resource, name: str, not_before_s: float | None) -> Object | None:
        if not is_object_name(name):
            return None
        return await self._objects.get((resource, name), not_before_s)

    async def _read_object(self, key: tuple[Resource, str]) -> Object | None:
        try:
            found = await self._client.get(*key)
        except errors.NotFoundError:
            return None
        found["metadata"].pop("managedFields", None)
        # Of a node nothing is read but that it is there.
        return {"metadata": {}} if key[0] == NODES else found

    async def _read_claim(self, key: Name) -> Claim | None:
        namespace, name = key
        try:
            return Claim.of(await self._client.get(VOLUME_CLAIMS, name, namespace))
        except errors.NotFoundError:
            return None

    async def _read_volume(self, key: Name) -> Volume | None:
        try:
            return Volume.of(await self._client.get(VOLUMES, key[1]))
        except errors.NotFoundError:
            return None

    async def _read_claims(self, namespace: str) -> dict[str, Claim] | None:
        found: dict[str, Claim] = {}

        def keep(item: Object) -> None:
            claim = Claim.of(item)
            found[claim.short_name] = claim

        return found if await self._list_some(VOLUME_CLAIMS, keep, found, namespace) else None

    async def _read_volumes(self, _: str) -> dict[str, Volume] | None:
        found: dict[str, Volume] = {}
        alike = Alike()

        def keep(item: Object) -> None:
            volume = Volume.of(item, alike)
            found[volume.name] = volume

        return found if await self._list_some(VOLUMES, keep, found) else None

    async def _list_some(
        self, resource: Resource, keep: Callable[[Object], None], found: Sized, namespace: str = ""
    ) -> bool:
        """Lists objects, unless they turn out to be too many."""

        def keep_some(item: Object) -> None:
            if len(found) >= _WHOLE_LIST_LIMIT:
                raise _TooManyError
            keep(item)

        selector = {"fieldSelector": f"metadata.namespace={namespace}"} if namespace else None
        try:
            await self._client.list_all(resource, selector, keep=keep_some, page_size=_PAGE_SIZE)
        except _TooManyError:
            return False
        return True

    async def _list_volumes(self, _: None) -> VolumeList:
        listed = VolumeList()
        await self._client.list_all(VOLUMES, keep=listed.add, page_size=_PAGE_SIZE)
        return listed

    async def _list_capacities(self, _: None) -> list[Capacity]:
        found: list[Capacity] = []
        await self._client.list_all(CSI_CAPACITIES, keep=lambda item: found.append(Capacity.of(item)))
        return found
