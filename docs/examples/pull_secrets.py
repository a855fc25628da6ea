"""Copies a pull secret into every namespace labelled copy-pull-secret=true, and keeps the copies true.

docs/controller.md explains it part by part. To run it: python pull_secrets.py NAMESPACE/NAME
"""

import os
import signal
import socket
import sys
from collections.abc import Iterable

import anyio

from controller.runtime import errors
from controller.runtime.cache import Cache, Change, Key
from controller.runtime.client import Client, ClientOptions, Object, Resource
from controller.runtime.leader import Lease, LeaseOptions
from controller.runtime.manager import Manager, ManagerOptions
from controller.runtime.reconcile import Controller, Result
from controller.runtime.reporting import EventRecorder, reference
from controller.runtime.slots import Slot
from controller.runtime.workqueue import Backoff, WorkQueue

SECRETS = Resource("v1", "secrets")
NAMESPACES = Resource("v1", "namespaces", namespaced=False)
OURS = {"copied-by": "pull-secrets"}


class PullSecrets:
    """Brings a namespace to what its label says."""

    def __init__(self, client: Client, source: Key, secrets: Cache, namespaces: Cache) -> None:
        self.recorder = EventRecorder(client, "pull-secrets")
        self._client, self._source = client, source
        self._secrets, self._namespaces = secrets, namespaces

    async def reconcile(self, key: str, slot: Slot, /) -> Result:
        """Looks at the namespace `key` as it is, and does what is missing."""
        home, name = self._source
        source, namespace = self._secrets.get(name, home), self._namespaces.get(key)
        if key == home or source is None or namespace is None or "deletionTimestamp" in namespace["metadata"]:
            return Result()
        copy = self._secrets.get(name, key)
        if copy is not None and not is_ours(copy):
            text = f"secret {name} is there already, and is left alone"
            self.recorder.event(reference(namespace, "v1", "Namespace"), "Warning", "SecretExists", text)
            return Result()

        data = source.get("data", {})
        wanted = labels(namespace).get("copy-pull-secret") == "true"
        if wanted and copy is None:
            metadata = {"name": name, "labels": OURS}
            try:
                await self._client.create(
                    SECRETS, {"metadata": metadata, "type": source["type"], "data": data}, key
                )
            except errors.AlreadyExistsError:
                return Result(requeue_after_s=1.0)  # the cache has yet to see it
        elif wanted and copy is not None and copy.get("data", {}) != data:
            await self._client.update(SECRETS, {**copy, "data": data}, key)
        elif not wanted and copy is not None:
            await self._client.delete(SECRETS, name, key, uid=copy["metadata"]["uid"])
        return Result()


def labels(item: Object) -> Object:
    """The labels of an object."""
    return item["metadata"].get("labels") or {}


def is_ours(secret: Object) -> bool:
    """Whether a secret is a copy that this controller made."""
    return OURS.items() <= labels(secret).items()


def build(client: Client, source: Key, lease: Lease) -> Manager:
    """Connects the parts."""
    home, name = source
    secrets = Cache(client, SECRETS, selectors={"fieldSelector": f"metadata.name={name}"})
    namespaces = Cache(client, NAMESPACES)

    def namespaces_of(change: Change) -> Iterable[str]:
        namespace = change.object["metadata"]["namespace"]
        return [item["metadata"]["name"] for item in namespaces] if namespace == home else [namespace]

    reconciler = PullSecrets(client, source, secrets, namespaces)
    queue: WorkQueue[str] = WorkQueue(Backoff(base_s=1.0, max_s=60.0))
    controller = Controller("pull-secrets", reconciler, queue, max_concurrent=4)
    controller.watch(namespaces, lambda change: [change.object["metadata"]["name"]])
    controller.watch(secrets, namespaces_of)
    return Manager(
        ManagerOptions(
            caches=[secrets, namespaces],
            controllers=[controller],
            recorder=reconciler.recorder,
            lease=lease,
        )
    )


async def main(source: Key) -> None:
    """Runs until SIGTERM or Ctrl-C."""
    client = await Client.connect(ClientOptions())
    lease = Lease(client, LeaseOptions("pull-secrets", source[0], f"{socket.gethostname()}_{os.getpid()}"))
    client.fence(lease.left_s)
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(set_on_signal, stop)
        await build(client, source, lease).run(stop)
        tasks.cancel_scope.cancel()
    await client.close()


async def set_on_signal(stop: anyio.Event) -> None:
    """Asks for an orderly end at the first signal."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            stop.set()


if __name__ == "__main__":
    home, _, name = sys.argv[1].partition("/")
    anyio.run(main, (home, name))
