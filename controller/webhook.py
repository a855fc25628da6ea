"""The composition root of `kai-binder admission`: from settings to a webhook that serves.

It builds and connects, and decides nothing. Which plugins are on is read from the same setting as the
binder's, by the same code.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.abc
from loguru import logger
from pydantic import BaseModel

from controller.admission import review, tls
from controller.admission.comparison import Agreement
from controller.admission.measures import Measures
from controller.admission.rules import Rules
from controller.admission.server import Answer, Server
from controller.planning import plan
from controller.plugins import gpusharing, memorylimit, shape
from controller.plugins.registry import PlannedPlugin
from controller.runtime.client import Client, ClientOptions
from controller.runtime.endpoints import Address, Telemetry
from controller.runtime.metrics import ProcessMetrics
from controller.settings import AdmissionSettings

if TYPE_CHECKING:
    from controller.admission.selfsigned import Maker

NAME = "The webhook"
MUTATE, VALIDATE = "/mutate--v1-pod", "/validate--v1-pod"


def prepare(settings: AdmissionSettings, ignored: list[str]) -> tuple[PlannedPlugin, ...]:
    """The plugins in their order; what of the plugins setting was left out is added to `ignored`.

    Raises:
        SettingsError: The settings cannot be followed.
    """
    return plan(settings, ignored)


def problems(_settings: AdmissionSettings, _plugins: Sequence[PlannedPlugin]) -> list[str]:
    """What stands in the way of these settings, beside needs of plugins: nothing is known to."""
    return []


def outlook(_settings: AdmissionSettings, _plugins: Sequence[PlannedPlugin]) -> dict[str, str]:
    """What the webhook will do that its settings alone do not show: nothing."""
    return {}


def rules_of(settings: AdmissionSettings, plugins: Sequence[PlannedPlugin]) -> Rules:
    """What the webhook judges by."""
    arguments = {planned.cls: planned.arguments for planned in plugins}
    return Rules(
        scheduler_name=settings.scheduler_name,
        plugins=tuple(planned.cls.name for planned in plugins),
        unmet={planned.cls.name: planned.unmet for planned in plugins if planned.unmet is not None},
        nri=_nri(arguments.get(gpusharing.GPUSharing)),
        limit_variable=_variable(arguments.get(memorylimit.GPUMemoryLimit)),
        binder_account=settings.binder_service_account_username,
        block_visible_devices=settings.block_nvidia_visible_devices,
        runtime_class_name=settings.gpu_fraction_runtime_class_name,
        failures_ignored=frozenset(
            planned.cls.name for planned in plugins if planned.failure_policy == "Ignore"
        ),
    )


def _nri(arguments: BaseModel | None) -> bool:
    return isinstance(arguments, gpusharing.Arguments) and arguments.nri_plugin_enabled


def _variable(arguments: BaseModel | None) -> str:
    return arguments.variable if isinstance(arguments, memorylimit.Arguments) else ""


async def run(settings: AdmissionSettings, plugins: tuple[PlannedPlugin, ...], stop: anyio.Event) -> None:
    """Runs the webhook until `stop` is set.

    Raises:
        ListenError: An address cannot be listened on.
        CredentialsError: A certificate of its own was asked for, and there are no usable credentials.
    """
    for planned in plugins:
        if planned.unmet is not None:
            log = logger.bind(plugin=planned.cls.name, problem=planned.unmet)
            log.error("A plugin's needs are not met (DependencyNotMet): pods are not prepared for it")
    metrics = ProcessMetrics()
    measures = Measures(metrics.registry)
    here = shape.shape_of(plugins)

    def compare(text: str) -> list[str] | None:
        binder = shape.read(text)
        return None if binder is None else shape.differences(here, binder)

    agreement = Agreement(settings.binder_metrics_url, compare, measures.compared)
    async with anyio.create_task_group() as beside:
        certificate = tls.Certificate(_source(settings, metrics, beside), observe=measures.certificate)
        address = Address.parse(settings.webhook_bind_address)
        assert address is not None  # noqa: S101 -- the settings' promise
        answers = _answers(rules_of(settings, plugins), agreement)
        server = Server(address, answers, certificate, measures)
        addresses = settings.metrics_bind_address, settings.health_probe_bind_address
        endpoints = Telemetry(metrics, *addresses, live={}, ready={"server": server.ready})
        await beside.start(endpoints.run)
        if settings.binder_metrics_url:
            beside.start_soon(agreement.run)
        await server.run(stop)
        beside.cancel_scope.cancel()


def _answers(rules: Rules, agreement: Agreement) -> dict[str, Answer]:
    return {
        MUTATE: lambda body: review.mutate(body, rules, agreement.warnings),
        VALIDATE: lambda body: review.validate(body, rules, agreement.warnings),
    }


def _source(settings: AdmissionSettings, metrics: ProcessMetrics, beside: anyio.abc.TaskGroup) -> tls.Source:
    """Where the certificate comes from; what makes one runs beside the server."""
    if not settings.self_signed_certificate:
        return tls.files(Path(settings.tls_cert_file), Path(settings.tls_private_key_file))
    from controller.admission.selfsigned import Maker, Place  # late: it takes what else no webhook needs

    place = Place(
        namespace=settings.webhook_namespace,
        service=settings.webhook_service_name,
        secret=settings.webhook_secret_name,
        configuration=settings.webhook_configuration_name,
    )
    maker = Maker(place)
    beside.start_soon(_make, settings, metrics, maker)
    return maker.read


async def _make(settings: AdmissionSettings, metrics: ProcessMetrics, maker: "Maker") -> None:
    client = await Client.connect(ClientOptions(kubeconfig=settings.kubeconfig, observe=metrics.request))
    try:
        await maker.run(client)
    finally:
        with anyio.CancelScope(shield=True):
            await client.close()
