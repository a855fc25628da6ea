"""The objects that a cache holds, by key and by index.

Invariant: an object that cannot be trimmed or indexed is left out, and takes nothing else with it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from loguru import logger

from controller.runtime.client import Object

Key = tuple[str, str]
"""Namespace (empty for kinds without one) and name."""

Indexer = Callable[[Object], Iterable[str]]


def key_of(item: Object) -> Key:
    """Namespace and name of an object."""
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def uid_of(item: Object) -> str:
    """What tells an object from an earlier one of its name."""
    return str(item["metadata"]["uid"])


def version_of(item: Object) -> int:
    """The resourceVersion as a number: comparable by Kubernetes' own rule since v1.35, in practice always."""
    return int(item["metadata"]["resourceVersion"])


def without_managed_fields(item: Object) -> Object:
    """The trim that every cache wants at least: who wrote which field is of no use here."""
    item["metadata"].pop("managedFields", None)
    return item


class Store:
    """Objects by key and by index; what cannot be trimmed or indexed is not in it."""

    def __init__(self, name: str, trim: Callable[[Object], Object], indexers: Mapping[str, Indexer]) -> None:
        """Makes an empty one.

        Args:
            name: Of the kind, for people.
            trim: Takes what nobody reads off each object.
            indexers: By name, a function from an object to the values it is to be found under.
        """
        self.objects: dict[Key, Object] = {}
        self.unreadable: set[Key] = set()
        self._name = name
        self._trim = trim
        self._indexers = dict(indexers)
        self._indexes = self._empty()

    def _empty(self) -> dict[str, defaultdict[str, set[Key]]]:
        return {name: defaultdict(set) for name in self._indexers}

    def by_index(self, index: str, value: str) -> list[Object]:
        """The objects that the index of this name lists under a value."""
        return [self.objects[key] for key in self._indexes[index].get(value, ())]

    def trimmed(self, item: Object) -> Object | None:
        """What is to be kept of an object, if it can be read; said once if not."""
        key = key_of(item)
        try:
            uid_of(item), version_of(item)
            kept = self._trim(item)
            for indexer in self._indexers.values():
                tuple(indexer(kept))
        except Exception:  # noqa: BLE001 -- one object must not take the others with it
            if key not in self.unreadable:
                logger.bind(kind=self._name, object="/".join(key)).exception(
                    "An object cannot be understood and is left out"
                )
            self.unreadable.add(key)
            return None
        self.unreadable.discard(key)
        return kept

    def put(self, key: Key, item: Object) -> Object | None:
        """Takes an object in; returns what is kept of it, None if it cannot be read."""
        self.pop(key)
        kept = self.trimmed(item)
        if kept is not None:
            self.objects[key] = kept
            self._add_to_indexes(key, kept)
        return kept

    def pop(self, key: Key) -> None:
        """Takes an object out, if it is in."""
        old = self.objects.pop(key, None)
        if old is None:
            return
        for name, indexer in self._indexers.items():
            for value in indexer(old):
                keys = self._indexes[name][value]
                keys.discard(key)
                if not keys:
                    del self._indexes[name][value]

    def swap(self, objects: dict[Key, Object]) -> dict[Key, Object]:
        """Puts trimmed objects in the place of all; returns those that were there."""
        previous, self.objects = self.objects, objects
        self.unreadable -= objects.keys()
        self._indexes = self._empty()
        for key, item in objects.items():
            self._add_to_indexes(key, item)
        return previous

    def _add_to_indexes(self, key: Key, item: Object) -> None:
        for name, indexer in self._indexers.items():
            for value in indexer(item):
                self._indexes[name][value].add(key)
