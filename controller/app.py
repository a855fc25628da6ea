"""The composition root: from settings to a running process. It builds and connects, and decides nothing."""

import socket
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
from loguru import logger

from controller.api import BIND_REQUESTS, LEASE_NAME, NODES, PODS
from controller.binder.crd import warn_if_status_is_pruned
from controller.binder.objects import trim_node, trim_pod, trim_request, trim_reservation
from controller.binder.pipeline import Pipeline
from controller.binder.reconciler import BindRequestReconciler, Caches, keys_to_bind
from controller.gpu import groups_of_pod, groups_of_request
from controller.plugins import registry
from controller.plugins.registry import PlannedPlugin
from controller.reservation.groups import (
    GroupReconciler,
    groups_of_changed_request,
    groups_of_changed_reservation,
    pods_of_request,
)
from controller.reservation.manifest import ReservationOptions
from controller.reservation.service import GROUP_INDEX, POD_INDEX, GroupCaches, Reservations, Usage
from controller.runtime.cache import Cache, Key
from controller.runtime.client import Client, ClientOptions
from controller.runtime.leader import Lease, LeaseOptions
from controller.runtime.manager import Manager, ManagerOptions
from controller.runtime.reconcile import Controller, Reconciler
from controller.runtime.reporting import EventRecorder
from controller.runtime.telemetry import Metrics, Telemetry
from controller.runtime.workqueue import Backoff, WorkQueue
from controller.settings import Settings, SettingsError

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def plan(settings: Settings) -> tuple[PlannedPlugin, ...]:
    """The plugins that the settings enable, in their order.

    Raises:
        SettingsError: The plugins setting cannot be followed.
    """
    try:
        return registry.resolve(registry.installed(), settings.plugins)
    except registry.PluginConfigError as error:
        raise SettingsError(error.problems) from error


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


async def run(settings: Settings, plugins: tuple[PlannedPlugin, ...], stop: anyio.Event) -> None:
    """Runs the binder until `stop` is set.

    Raises:
        ValueError: There are no usable credentials.
        ExceptionGroup: Something without which it cannot go on failed, e.g. the lease was lost.
    """
    for planned in plugins:
        if planned.unmet is not None:
            log = logger.bind(plugin=planned.cls.name, problem=planned.unmet)
            log.error(
                "A plugin's needs are not met: requests that concern it will fail with DependencyNotMet"
            )
    metrics = Metrics()
    client = await Client.connect(
        ClientOptions(
            kubeconfig=settings.kubeconfig,
            qps=settings.qps,
            burst=settings.burst,
            observe=metrics.request,
        )
    )
    try:
        await warn_if_status_is_pruned(client)
        await _manager(settings, plugins, client, metrics).run(stop)
    finally:
        with anyio.CancelScope(shield=True):
            await client.close()


def _manager(
    settings: Settings, plugins: tuple[PlannedPlugin, ...], client: Client, metrics: Metrics
) -> Manager:
    caches = _caches(settings, client)
    groups = GroupCaches(requests=caches.requests, pods=caches.pods, reservations=caches.reservations)
    recorder = EventRecorder(client, "binder")
    backoff = Backoff(settings.rate_limiter_base_delay, settings.rate_limiter_max_delay)
    usage = Usage()
    reservations = Reservations(client, groups, _reservation_options(settings), usage)

    group_queue: WorkQueue[str] = _queue("gpugroup", backoff, metrics)
    group_reconciler = GroupReconciler(client, groups, reservations, usage, recorder)
    releasing = _controller("gpugroup", group_reconciler, group_queue, settings, metrics)
    releasing.watch(caches.requests, groups_of_changed_request)
    releasing.watch(caches.pods, group_reconciler.groups_of_changed_pod)
    releasing.watch(caches.reservations, groups_of_changed_reservation)

    pipeline = Pipeline(client, plugins, reservations, usage, group_queue.add)
    reconciler = BindRequestReconciler(client, caches, pipeline, recorder, backoff)
    queue: WorkQueue[Key] = _queue("bindrequest", backoff, metrics)
    binding = _controller("bindrequest", reconciler, queue, settings, metrics)
    binding.watch(caches.requests, keys_to_bind)

    manager: Manager  # the endpoints ask the manager, which runs them
    endpoints = Telemetry(
        metrics,
        settings.metrics_bind_address,
        settings.health_probe_bind_address,
        live={"watches": lambda: manager.alive()},
        ready={"caches": lambda: manager.ready()},
    )
    lease = _lease(settings, client, metrics) if settings.leader_elect else None
    if lease is not None:
        client.fence(lease.held)
    manager = Manager(
        ManagerOptions(
            caches=(caches.requests, caches.pods, caches.nodes, caches.reservations),
            controllers=(binding, releasing),
            recorder=recorder,
            services=(endpoints,),
            lease=lease,
        )
    )
    return manager


def _caches(settings: Settings, client: Client) -> Caches:
    ours = {"fieldSelector": f"spec.schedulerName={settings.scheduler_name}"}
    reserved = {"fieldSelector": f"metadata.namespace={settings.resource_reservation_namespace}"}
    return Caches(
        requests=Cache(
            client,
            BIND_REQUESTS,
            trim=trim_request,
            indexes={GROUP_INDEX: groups_of_request, POD_INDEX: pods_of_request},
        ),
        pods=Cache(
            client,
            PODS,
            selectors=ours,
            trim=trim_pod,
            indexes={GROUP_INDEX: groups_of_pod},
            required=False,
        ),
        nodes=Cache(client, NODES, trim=trim_node, required=False),
        reservations=Cache(
            client,
            PODS,
            name="reservations",
            selectors=reserved,
            trim=trim_reservation,
            indexes={GROUP_INDEX: groups_of_pod},
            required=False,
        ),
    )


def _reservation_options(settings: Settings) -> ReservationOptions:
    return ReservationOptions(
        namespace=settings.resource_reservation_namespace,
        service_account=settings.resource_reservation_service_account,
        app_label=settings.resource_reservation_app_label,
        image=settings.resource_reservation_pod_image,
        timeout_s=settings.resource_reservation_allocation_timeout,
        resources=settings.resource_reservation_pod_resources or {},
        pod_security_context=settings.resource_reservation_pod_security_context,
        container_security_context=settings.resource_reservation_container_security_context,
        priority_class_name=settings.resource_reservation_priority_class_name,
        runtime_class_name=settings.runtime_class_name,
        fake_gpu_nodes=settings.fake_gpu_nodes,
        scale_adjust_namespace=settings.scale_adjust_namespace,
    )


def _queue(name: str, backoff: Backoff, metrics: Metrics) -> WorkQueue[Any]:
    observer = metrics.queue(name)
    queue: WorkQueue[Any] = WorkQueue(backoff, observer)
    observer.track(queue.work_s)
    return queue


def _controller(
    name: str, reconciler: Reconciler[Any], queue: WorkQueue[Any], settings: Settings, metrics: Metrics
) -> Controller[Any]:
    limit = settings.max_concurrent_reconciles
    return Controller(name, reconciler, queue, max_concurrent=limit, observer=metrics.controller(name, limit))


def _lease(settings: Settings, client: Client, metrics: Metrics) -> Lease:
    identity = f"{socket.gethostname()}_{uuid4()}"
    options = LeaseOptions(LEASE_NAME, election_namespace(settings), identity)
    return Lease(client, options, observe=lambda held: metrics.leader(LEASE_NAME, held))
