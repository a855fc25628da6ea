"""The ConfigMaps of a pod with a share: made, replaced, and taken back, without touching anybody else's.

A map is written whole in one request and belongs to the pod by its uid. A map of a pod that is gone is
replaced. One of nobody is taken over if it holds nothing but what a binder writes, and given back if the bind
fails. Whatever else has the name stays as it is.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from controller.kai.names import CONFIG_MAPS, PODS, TAKEN_OVER
from controller.kai.outcome import Failed
from controller.kai.pods import full_name
from controller.kai.reasons import Reason
from controller.runtime import errors
from controller.runtime.client import Client, Object

_TRIES = 5
_SHOWN_KEYS = 3
_MOST_OWNERS = 4
"""Each is looked at by a request, while a worker is busy; the map's author may name ten thousand."""


class Content(Struct, frozen=True):
    """What a map is to hold.

    Attributes:
        name: Of the map.
        data: Its data.
        replaced: A key that is kept up where the map has it already, by its new value.
    """

    name: str
    data: Mapping[str, str]
    replaced: Mapping[str, str]

    def data_for(self, found: Object) -> dict[str, str]:
        """The data that this very map is to hold."""
        old = found.get("data") or {}
        return {**self.data, **{key: value for key, value in self.replaced.items() if key in old}}

    def is_in(self, found: Object) -> bool:
        """Whether the map holds this, and nothing else."""
        return not found.get("binaryData") and (found.get("data") or {}) == self.data_for(found)


class ConfigMaps:
    """Writes and takes back the maps of pods."""

    def __init__(self, client: Client, known_keys: frozenset[str]) -> None:
        """Makes it.

        Args:
            client: For all requests.
            known_keys: What a binder writes into maps, beside the keys of the content.
        """
        self._client = client
        self._known_keys = known_keys

    async def write(self, pod: Object, content: Content) -> Failed | None:
        """Makes or replaces one map of this pod; fails if it is somebody else's."""
        metadata = pod["metadata"]
        body = _body(metadata, content)
        for attempt in range(1, _TRIES + 1):
            try:
                await self._client.create(CONFIG_MAPS, body, metadata["namespace"])
            except errors.AlreadyExistsError:
                pass
            else:
                return None
            try:
                found = await self._client.get(CONFIG_MAPS, content.name, metadata["namespace"])
                refused = await self._why_not(found, pod, content)
                if refused is not None:
                    return Failed(Reason.CONFIG_MAP_CONFLICT, f"ConfigMap {full_name(found)} {refused}")
                if await self._replace(found, body, content):
                    return None
            except errors.NotFoundError:
                continue  # deleted meanwhile: make it
            except errors.ConflictError:
                if attempt == _TRIES:
                    raise
        text = f"ConfigMap {metadata['namespace']}/{content.name} is written by others all the time"
        return Failed(Reason.CONFIG_MAP_CONFLICT, text)

    async def _why_not(self, found: Object, pod: Object, content: Content) -> str | None:
        """Why a map that is there may not be replaced, in words to follow its name."""
        metadata = found["metadata"]
        if metadata.get("deletionTimestamp"):
            return "is being deleted"
        owners = metadata.get("ownerReferences") or ()
        if len(owners) > _MOST_OWNERS:
            return f"has {len(owners)} owners, and a map of a pod with a share has one"
        for owner in owners:
            if await self._lives(owner, pod):
                return f"belongs to {_owner_name(owner, metadata['namespace'])}"
        if owners:
            return None
        foreign = set(found.get("data") or ()) - self._known_keys - set(content.data)
        if foreign or found.get("binaryData"):
            keys = sorted(foreign | set(found.get("binaryData") or {}))
            more = f" and {len(keys) - _SHOWN_KEYS} more" if len(keys) > _SHOWN_KEYS else ""
            named = ", ".join(keys[:_SHOWN_KEYS])
            return f"has no owner and holds what no binder writes ({named}{more}), so it is not taken over"
        if found.get("immutable") and not content.is_in(found):
            return "has no owner and is immutable"
        return None

    async def _lives(self, owner: Object, pod: Object) -> bool:
        """Whether an owner is neither this pod nor gone."""
        if not _is_pod(owner):
            return True
        if owner["uid"] == pod["metadata"]["uid"]:
            return False
        try:
            other = await self._client.get(PODS, owner["name"], pod["metadata"]["namespace"])
        except errors.NotFoundError:
            return False
        return bool(other["metadata"]["uid"] == owner["uid"])

    async def _replace(self, found: Object, body: Object, content: Content) -> bool:
        """Has a map hold the content; False if it was removed, since it could not be changed."""
        metadata, wanted = found["metadata"], body["metadata"]
        owners = metadata.get("ownerReferences")
        if owners == wanted["ownerReferences"] and content.is_in(found):
            return True
        if found.get("immutable") and owners:
            await self._client.delete(
                CONFIG_MAPS, metadata["name"], metadata["namespace"], uid=metadata["uid"]
            )
            return False
        new = {**wanted, "resourceVersion": metadata["resourceVersion"]}
        if not owners or TAKEN_OVER in (metadata.get("annotations") or {}):
            new["annotations"] = {TAKEN_OVER: "true"}
        whole: Object = {**body, "metadata": new, "data": content.data_for(found)}
        if found.get("immutable"):
            whole["immutable"] = True
        await self._client.update(CONFIG_MAPS, whole, metadata["namespace"])
        return True

    async def take_back(self, pod: Object, contents: Sequence[Content], node_name: str) -> None:
        """Takes back this pod's maps, unless it needs them on some node after all.

        Args:
            pod: The pod as it was when the bind began.
            contents: What the bind wrote, or would have written.
            node_name: Where the pod was to run. On another node it cannot use these maps, but may have been
                given others by the same names.
        """
        found = [item for item in [await self._own(pod, content) for content in contents] if item is not None]
        if not found or await self._needs_them(pod, found, contents, node_name):
            return
        faults = []
        for item in found:
            try:
                await self._remove(item)
            except (errors.NotFoundError, errors.ConflictError):
                continue
            except errors.ApiError as error:
                faults.append(error)  # the other map must go all the same
        if faults:
            raise faults[0]

    async def _own(self, pod: Object, content: Content) -> Object | None:
        """The map if it is this pod's alone."""
        metadata = pod["metadata"]
        try:
            found = await self._client.get(CONFIG_MAPS, content.name, metadata["namespace"])
        except errors.NotFoundError:
            return None
        owners = found["metadata"].get("ownerReferences") or ()
        ours = owners and all(_is_pod(owner) and owner["uid"] == metadata["uid"] for owner in owners)
        return found if ours else None

    async def _needs_them(
        self, pod: Object, found: Sequence[Object], contents: Sequence[Content], node_name: str
    ) -> bool:
        metadata = pod["metadata"]
        try:
            present = await self._client.get(PODS, metadata["name"], metadata["namespace"])
        except errors.NotFoundError:
            return False
        node = present["spec"].get("nodeName")
        if present["metadata"]["uid"] != metadata["uid"] or not node:
            return False
        by_name = {content.name: content for content in contents}
        return node == node_name or not all(by_name[item["metadata"]["name"]].is_in(item) for item in found)

    async def _remove(self, found: Object) -> None:
        """Deletes a map, or gives it back to nobody if it was there before."""
        metadata = found["metadata"]
        if TAKEN_OVER not in (metadata.get("annotations") or {}):
            await self._client.delete(
                CONFIG_MAPS, metadata["name"], metadata["namespace"], uid=metadata["uid"]
            )
            return
        kept = {name: metadata[name] for name in ("name", "namespace", "resourceVersion")}
        await self._client.update(CONFIG_MAPS, {**found, "metadata": kept}, metadata["namespace"])


def _body(pod: Object, content: Content) -> Object:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod["name"], "uid": pod["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": content.name, "namespace": pod["namespace"], "ownerReferences": [owner]},
        "data": dict(content.data),
    }


def _is_pod(owner: Object) -> bool:
    return bool(owner["kind"] == "Pod" and owner["apiVersion"] == "v1")


def _owner_name(owner: Object, namespace: str) -> str:
    return f"pod {namespace}/{owner['name']}" if _is_pod(owner) else f"{owner['kind']} {owner['name']}"
