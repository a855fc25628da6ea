"""The composition root: from settings to a running process. It builds and connects, and decides nothing."""

import os
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
from loguru import logger

from controller.binder.backlog import Backlog
from controller.binder.crd import SchemaCheck
from controller.binder.metrics import BinderMetrics
from controller.binder.objects import trim_node, trim_pod, trim_request, trim_reservation
from controller.binder.pipeline import Pipeline, SharedGPUs
from controller.binder.reconciler import BindRequestReconciler, keys_to_bind
from controller.binder.telling import Counts, Teller
from controller.binder.work import Caches
from controller.kai.names import BIND_REQUESTS, NODES, PODS
from controller.kai.nodepool import NodePool
from controller.kai.sharing import groups_of_pod, groups_of_request
from controller.planning import plan
from controller.plugins import registry
from controller.plugins.gpusharing import GPUSharing
from controller.plugins.nvfractions import NvFractions
from controller.plugins.registry import PlannedPlugin
from controller.reservation.groups import (
    GroupReconciler,
    groups_of_changed_request,
    groups_of_changed_reservation,
)
from controller.reservation.image import outlook_of, own_pod
from controller.reservation.ledger import Ledger
from controller.reservation.manifest import OwnPod, ReservationOptions
from controller.reservation.members import (
    GROUP_INDEX,
    NODE_INDEX,
    POD_INDEX,
    GroupCaches,
    nodes_of_pod,
    pods_of_request,
)
from controller.reservation.service import Reservations
from controller.reservation.shard import Shard
from controller.reservation.usage import Usage
from controller.runtime.cache import Cache, Key
from controller.runtime.changes import Changes
from controller.runtime.client import Client, ClientOptions
from controller.runtime.endpoints import Telemetry
from controller.runtime.lanes import Lanes
from controller.runtime.leader import Lease, LeaseOptions
from controller.runtime.manager import Manager, ManagerOptions
from controller.runtime.metrics import Metrics
from controller.runtime.reconcile import Controller, Reconciler
from controller.runtime.reporting import EventRecorder
from controller.runtime.workqueue import Backoff, WorkQueue
from controller.setting_types import PLACEHOLDER_IMAGE, image_problem
from controller.settings import Settings, SettingsError

NAME = "The binder"
MOST_OF_A_NAMESPACE = 1000
"""Requests of one namespace that are worked on at a time, most of which wait: each takes some 70 KiB."""
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def prepare(settings: Settings, ignored: list[str]) -> tuple[PlannedPlugin, ...]:
    """The plugins in their order, once all that a start needs of the settings is there.

    Args:
        settings: The settings.
        ignored: What of the plugins setting was left out is added here, in words.

    Raises:
        SettingsError: The settings cannot be followed.
    """
    if settings.leader_elect:
        election_namespace(settings)
    return plan(settings, ignored)


def election_namespace(settings: Settings) -> str:
    """Where the leader's Lease is: as set, or the pod's own namespace.

    Raises:
        SettingsError: Neither is known.
    """
    if settings.leader_election_namespace:
        return settings.leader_election_namespace
    if _OWN_NAMESPACE.is_file():
        return _OWN_NAMESPACE.read_text().strip()
    raise SettingsError(["--leader-elect outside of a pod needs --leader-election-namespace"])


def sharing_problem(settings: Settings, plugins: Sequence[PlannedPlugin]) -> str | None:
    """Why no GPU can be shared though a plugin for it is on; None if nothing is known to stand in the way."""
    image = image_problem(settings.resource_reservation_pod_image)
    sharing = _sharing(plugins)
    if image is None or not sharing:
        return None
    if not _image_is_set(settings) and _own_pod() is not None:
        return None  # it has an image, which will be looked up
    return (
        f"--resource-reservation-pod-image: {image}; no GPU can be shared until the image of the reservation "
        f"pods is set. Without shared GPUs, turn {' and '.join(sharing)} off"
    )


def problems(settings: Settings, plugins: Sequence[PlannedPlugin]) -> list[str]:
    """What stands in the way of these settings, beside needs of plugins."""
    sharing = sharing_problem(settings, plugins)
    return [] if sharing is None else [sharing]


def outlook(settings: Settings, plugins: Sequence[PlannedPlugin]) -> dict[str, str]:
    """What the binder will do that its settings alone do not show, by a name for it."""
    if not _sharing(plugins):
        return {}
    return {"reservation-pods-run": outlook_of(_image_is_set(settings), _own_pod())}


def _sharing(plugins: Sequence[PlannedPlugin]) -> list[str]:
    """The plugins in use for which GPUs are reserved."""
    return [planned.cls.name for planned in plugins if planned.cls in (GPUSharing, NvFractions)]


def _image_is_set(settings: Settings) -> bool:
    return settings.resource_reservation_pod_image != PLACEHOLDER_IMAGE


def _own_pod() -> OwnPod | None:
    return own_pod(os.environ, socket.gethostname(), _OWN_NAMESPACE)


async def run(settings: Settings, plugins: tuple[PlannedPlugin, ...], stop: anyio.Event) -> None:
    """Runs the binder until `stop` is set.

    Raises:
        CredentialsError: There are no usable credentials.
        ExceptionGroup: Something without which it cannot go on failed, e.g. the lease was lost.
    """
    for planned in plugins:
        if planned.unmet is not None:
            ending = "fail" if planned.failure_policy == "Fail" else "be bound without it"
            log = logger.bind(plugin=planned.cls.name, problem=planned.unmet)
            log.error(
                f"A plugin's needs are not met (DependencyNotMet): requests that concern it will {ending}"
            )
    sharing = sharing_problem(settings, plugins)
    if sharing is not None:
        logger.bind(problem=sharing).error("GPUs cannot be shared")
    metrics = BinderMetrics(plugins)
    manager: Manager | None = None  # the endpoints answer before there is one

    def ready() -> str | None:
        return manager.ready() if manager is not None else "the API server has not answered yet"

    def alive() -> str | None:
        return manager.alive() if manager is not None else None

    addresses = settings.metrics_bind_address, settings.health_probe_bind_address
    endpoints = Telemetry(metrics, *addresses, live={"watches": alive}, ready={"caches": ready})
    async with anyio.create_task_group() as beside:
        await beside.start(endpoints.run)
        client = await _connect(settings, metrics, stop)
        if client is not None:
            try:
                manager = _manager(settings, plugins, client, metrics)
                await manager.run(stop)
            finally:
                with anyio.CancelScope(shield=True):
                    await client.close()
        beside.cancel_scope.cancel()


async def _connect(settings: Settings, metrics: BinderMetrics, stop: anyio.Event) -> Client | None:
    """Waits for the API server, however long it takes; None if it was told to stop before."""
    options = ClientOptions(
        kubeconfig=settings.kubeconfig, qps=settings.qps, burst=settings.burst, observe=metrics.observe
    )
    client: Client | None = None
    async with anyio.create_task_group() as tasks:

        async def give_up() -> None:
            await stop.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(give_up)
        client = await Client.connect(options)
        tasks.cancel_scope.cancel()
    return client


def _manager(
    settings: Settings, plugins: tuple[PlannedPlugin, ...], client: Client, metrics: BinderMetrics
) -> Manager:
    lease = _lease(settings, client, metrics) if settings.leader_elect else None
    caches = _caches(settings, plugins, client)
    shard = Shard(client, caches.pool, caches.nodes)
    groups = GroupCaches(caches.requests, caches.pods, caches.reservations, shard)
    recorder = EventRecorder(client, "binder")
    backoff = Backoff(settings.rate_limiter_base_delay, settings.rate_limiter_max_delay)
    usage = Usage()
    changes = Changes(client, caches.all())
    reservations = Reservations(client, groups, _reservation_options(settings), usage, changes)

    group_queue: WorkQueue[str] = _queue("gpugroup", backoff, metrics)
    group_reconciler = GroupReconciler(client, groups, reservations, usage, recorder)
    releasing = _controller("gpugroup", group_reconciler, group_queue, settings, metrics)
    ledger = Ledger(groups, reservations.members, usage)
    _watch_groups(releasing, group_reconciler, caches, ledger)

    gpus = SharedGPUs(reservations, usage, group_queue.add)
    pipeline = Pipeline(client, plugins, gpus, changes, metrics.measures)
    backlog = Backlog()
    teller = Teller(client, caches.requests, recorder, backoff, Counts(metrics.measures, backlog.age_s))
    reconciler = BindRequestReconciler(client, caches, pipeline, teller)
    lanes: Lanes[Key] = Lanes(lambda key: key[0], MOST_OF_A_NAMESPACE)
    queue: WorkQueue[Key] = _queue("bindrequest", backoff, metrics, lanes)
    binding = _controller("bindrequest", reconciler, queue, settings, metrics)
    binding.watch(caches.requests, backlog.noting(keys_to_bind))

    if lease is not None:
        client.fence(lease.left_s)
    image = (reservations.pods.image,) if _sharing(plugins) else ()
    manager = Manager(
        ManagerOptions(
            caches=caches.all(),
            controllers=(binding, releasing),
            recorder=recorder,
            services=(changes, SchemaCheck(client), *image),
            lease=lease,
        )
    )
    metrics.count(manager.works, backlog, ledger)
    return manager


def _watch_groups(
    releasing: Controller[str], reconciler: GroupReconciler, caches: Caches, ledger: Ledger
) -> None:
    releasing.watch(caches.requests, ledger.noting(groups_of_changed_request))
    releasing.watch(caches.pods, ledger.noting(reconciler.groups_of_changed_pod))
    releasing.watch(caches.reservations, ledger.noting(groups_of_changed_reservation))
    if not caches.pool.is_whole:
        releasing.watch(caches.nodes, ledger.noting(reconciler.groups_of_changed_node))


def _caches(settings: Settings, plugins: tuple[PlannedPlugin, ...], client: Client) -> Caches:
    has_outsiders = any(planned.cls not in registry.BUILT_IN for planned in plugins)
    pool = _pool(settings)
    in_pool = {} if pool.is_whole else {"labelSelector": pool.selector}
    ours = {"fieldSelector": f"spec.schedulerName={settings.scheduler_name}"}
    return Caches(
        requests=Cache(
            client,
            BIND_REQUESTS,
            selectors=in_pool,
            trim=trim_request,
            indexes={GROUP_INDEX: groups_of_request, POD_INDEX: pods_of_request},
        ),
        pods=Cache(
            client,
            PODS,
            selectors=ours | in_pool,
            trim=partial(trim_pod, all_annotations=has_outsiders),
            indexes={GROUP_INDEX: groups_of_pod},
            required=False,
        ),
        nodes=Cache(client, NODES, selectors=in_pool, trim=trim_node, required=False),
        reservations=Cache(
            client,
            PODS,
            name="reservations",
            namespace=settings.resource_reservation_namespace,
            trim=trim_reservation,
            indexes={GROUP_INDEX: groups_of_pod, NODE_INDEX: nodes_of_pod},
            required=False,
        ),
        pool=pool,
    )


def _pool(settings: Settings) -> NodePool:
    return NodePool(settings.nodepool_label_key, settings.partition_label_value)


def _reservation_options(settings: Settings) -> ReservationOptions:
    return ReservationOptions(
        scheduler_name=settings.scheduler_name,
        namespace=settings.resource_reservation_namespace,
        service_account=settings.resource_reservation_service_account,
        app_label=settings.resource_reservation_app_label,
        image=settings.resource_reservation_pod_image,
        image_is_set=_image_is_set(settings),
        own_pod=_own_pod(),
        timeout_s=settings.resource_reservation_allocation_timeout,
        resources=settings.resource_reservation_pod_resources or {},
        pod_security_context=settings.resource_reservation_pod_security_context,
        container_security_context=settings.resource_reservation_container_security_context,
        priority_class_name=settings.resource_reservation_priority_class_name,
        runtime_class_name=settings.runtime_class_name,
        fake_gpu_nodes=settings.fake_gpu_nodes,
        fips_only=settings.fips_only,
        scale_adjust_namespace=settings.scale_adjust_namespace,
        pool=_pool(settings),
    )


def _queue(name: str, backoff: Backoff, metrics: Metrics, lanes: Lanes[Any] | None = None) -> WorkQueue[Any]:
    observer = metrics.queue(name)
    queue: WorkQueue[Any] = WorkQueue(backoff, observer, lanes)
    observer.track(queue.work_s)
    return queue


def _controller(
    name: str, reconciler: Reconciler[Any], queue: WorkQueue[Any], settings: Settings, metrics: Metrics
) -> Controller[Any]:
    limit = settings.max_concurrent_reconciles
    return Controller(name, reconciler, queue, max_concurrent=limit, observer=metrics.controller(name, limit))


def _lease(settings: Settings, client: Client, metrics: Metrics) -> Lease:
    identity = f"{socket.gethostname()}_{uuid4()}"
    name = _pool(settings).lease_name
    options = LeaseOptions(name, election_namespace(settings), identity)
    return Lease(client, options, observe=lambda held: metrics.leader(name, held))
