"""A pod while it is prepared. Pure.

A copy that has all unchanged parts in common with the pod that came, so that a pod of any size costs only
what is changed. Setting something to what it is already changes nothing.
"""

import re
from collections.abc import Callable, Iterator

from controller.kai.pods import annotations_of, full_name
from controller.runtime.client import Object

_MAX_VOLUME_NAME = 63


class Draft:
    """A pod that is being prepared, and what its author is to be told.

    Containers are named by their list in the pod's spec and their place there.

    Attributes:
        pod: As it is now; what came is left as it was.
        warnings: Sentences.
    """

    def __init__(self, pod: Object) -> None:
        self.pod = pod
        self.warnings: list[str] = []

    def annotate(self, name: str, text: str) -> None:
        """Sets an annotation."""
        metadata, annotations = self.pod["metadata"], annotations_of(self.pod)
        if annotations.get(name) != text:
            self.pod = {**self.pod, "metadata": {**metadata, "annotations": {**annotations, name: text}}}

    def set_runtime_class(self, name: str) -> None:
        """Sets the runtime class unless the pod has one."""
        if not self.pod["spec"].get("runtimeClassName"):
            self._set("runtimeClassName", name)

    def add_volume(self, config_map: str) -> None:
        """Has the pod wait for a ConfigMap, by a volume that nobody mounts (B-116)."""
        name = _volume_name(config_map)
        volumes = self.pod["spec"].get("volumes") or []
        if all(volume["name"] != name for volume in volumes):
            self._set("volumes", [*volumes, {"name": name, "configMap": {"name": config_map}}])

    def drop_volumes(self, is_stale: Callable[[str], bool]) -> None:
        """Has the pod no longer wait for some ConfigMaps; volumes that somebody else made stay."""
        volumes = self.pod["spec"].get("volumes") or []
        kept = [item for item in volumes if not (_is_added(item) and is_stale(item["configMap"]["name"]))]
        if len(kept) != len(volumes):
            self._set("volumes", kept)

    def change_maps(self, place: tuple[str, int], renamed: Callable[[str], str | None]) -> None:
        """Has a container's variables come from other ConfigMaps; from none where that is no name.

        Args:
            place: Of the container.
            renamed: From the name of a ConfigMap to that of the one to take instead.
        """
        for field, kind in (("env", "configMapKeyRef"), ("envFrom", "configMapRef")):
            present: list[Object] = self._container(place).get(field) or []
            changed = list(_renamed(present, kind, renamed))
            if changed != present:
                self._set_in_container(place, field, changed)

    def set_env(self, place: tuple[str, int], entry: Object) -> None:
        """Has a container take a variable by this entry, and by no other.

        It stands where the first one of that name stood, so that entries that refer to it still do.
        """
        container = self._container(place)
        present: list[Object] = container.get("env") or []
        same = [item for item in present if item["name"] == entry["name"]]
        if same == [entry]:
            return
        if same:
            text = f"container {container['name']} of pod {full_name(self.pod)} sets {entry['name']} itself"
            self.warnings.append(f"{text}; that was replaced by what the share says")
            first = next(at for at, item in enumerate(present) if item is same[0])
            before, behind = present[:first], present[first + 1 :]
            rest = [item for item in behind if item["name"] != entry["name"]]
            self._set_in_container(place, "env", [*before, entry, *rest])
        else:
            self._set_in_container(place, "env", [*present, entry])

    def read_whole(self, place: tuple[str, int], config_map: str) -> None:
        """Has a container take all keys of a ConfigMap as variables, after all else that it reads so."""
        source = {"configMapRef": {"name": config_map, "optional": False}}
        present: list[Object] = self._container(place).get("envFrom") or []
        for at, item in enumerate(present):
            reference = item.get("configMapRef") or {}
            if reference.get("name") == config_map and not item.get("prefix"):
                if reference.get("optional"):
                    self._set_in_container(place, "envFrom", [*present[:at], source, *present[at + 1 :]])
                return
        self._set_in_container(place, "envFrom", [*present, source])

    def _container(self, place: tuple[str, int]) -> Object:
        group, number = place
        container: Object = self.pod["spec"][group][number]
        return container

    def _set_in_container(self, place: tuple[str, int], name: str, value: object) -> None:
        group, number = place
        containers = list(self.pod["spec"][group])
        containers[number] = {**containers[number], name: value}
        self._set(group, containers)

    def _set(self, name: str, value: object) -> None:
        self.pod = {**self.pod, "spec": {**self.pod["spec"], name: value}}


def _volume_name(config_map: str) -> str:
    """The name of the volume by which a pod waits for a ConfigMap."""
    stem = re.sub(r"[^a-z0-9]+", "-", config_map.lower())[: _MAX_VOLUME_NAME - len("-vol")].strip("-")
    return f"{stem}-vol"


def _is_added(volume: Object) -> bool:
    """Whether a volume is one that `add_volume` could have made."""
    config_map = (volume.get("configMap") or {}).get("name") or ""
    return bool(config_map) and volume["name"] == _volume_name(config_map)


def _renamed(items: list[Object], kind: str, renamed: Callable[[str], str | None]) -> Iterator[Object]:
    """Entries or sources with other ConfigMaps; without those that are to take none, and none twice."""
    seen = []
    for item in items:
        holder = item if kind in item else item.get("valueFrom") or {}
        reference = holder.get(kind)
        if not reference:
            yield item
            continue
        name = renamed(reference.get("name") or "")
        if name is None:
            continue
        if name == reference.get("name"):
            yield item
            continue
        changed = {kind: {**reference, "name": name}}
        made = {**item, **changed} if holder is item else {**item, "valueFrom": {**holder, **changed}}
        if made not in items and made not in seen:
            seen.append(made)
            yield made
