"""What a person can set: every flag, its environment variable, its default and what it accepts.

Called by ``__main__`` and ``app`` only. The one table of settings is the class `Settings`; what people see of
it (``setting_texts``) is read off it. Flags win over environment variables, these over defaults.

Invariant: nothing is read from the process itself (no ``os.environ``, no ``sys.argv``, no ``.env`` file);
`load` is given both, and reports all problems in one go, each under the name that the person typed.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import Field, JsonValue, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from controller.plugins.config import PluginConfig
from controller.setting_types import (
    PLACEHOLDER_IMAGE,
    BindAddress,
    Count,
    FeatureGates,
    Image,
    JSONObject,
    LabelValue,
    Level,
    LogFormat,
    MaybeName,
    Name,
    Namespace,
    OwnNamespace,
    Rate,
    Resources,
    Seconds,
    Switch,
    ZapEncoder,
    ZapLevel,
    ZapStacktraceLevel,
    ZapTimeEncoding,
    parse_address,
)
from controller.sources import STRICT_PLUGINS, Found, flag_of, read_environment, read_flags, typed


class SettingsError(Exception):
    """Some settings cannot be used.

    Attributes:
        problems: One line for each, naming the flag or variable, the value and what is allowed.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


def _level_from_zap(valid: dict[str, Any]) -> str:
    level = str(valid.get("zap_log_level", ""))
    if level.isdecimal():
        return "info" if int(level) == 0 else "debug" if int(level) == 1 else "trace"
    return {"debug": "debug", "error": "error", "panic": "error"}.get(level, "info")


def _format_from_zap(valid: dict[str, Any]) -> str:
    encoder = valid.get("zap_encoder") or ("console" if valid.get("zap_devel", True) else "json")
    return "json" if encoder == "json" else "text"


COMMANDS = "Commands"
"""The group of what is a flag only, as it asks for something else than to run."""


def group_of(info: FieldInfo) -> str:
    """The heading under which a setting is listed."""
    extra = info.json_schema_extra
    return str(extra["group"]) if isinstance(extra, dict) else ""


def _setting(default: Any, group: str, description: str) -> Any:  # noqa: ANN401
    """Declares a setting; a callable default is computed from the settings above it."""
    extra: dict[str, JsonValue] = {"group": group}
    if callable(default):
        return Field(default_factory=default, description=description, json_schema_extra=extra)
    return Field(default=default, description=description, json_schema_extra=extra)


class Settings(BaseSettings):
    """All settings, checked; every duration in seconds.

    The flag of a field is its name with dashes, the variable its name in upper case after BINDER_.
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid", validate_default=True)

    scheduler_name: Name = _setting(
        "kai-scheduler", "Scheduling", "Only pods with this spec.schedulerName are watched."
    )
    plugins: dict[str, PluginConfig] = _setting(
        {},
        "Scheduling",
        'JSON: plugin name -> {"enabled", "priority", "arguments", "failurePolicy"}, laid over the defaults. '
        "In the environment also one by one: BINDER_PLUGINS__<NAME>__ENABLED, …__PRIORITY, …__FAILUREPOLICY, "
        "…__ARGUMENTS (a JSON object).",
    )
    runtime_class_name: MaybeName = _setting(
        "", "Scheduling", "RuntimeClass of the reservation pods; empty for none."
    )
    fake_gpu_nodes: Switch = _setting(False, "Scheduling", "The cluster has nodes with fake GPUs.")
    scale_adjust_namespace: Namespace = _setting(
        "kai-scale-adjust",
        "Scheduling",
        "Namespace of the scaling pods, which make a cluster autoscaler add nodes.",
    )
    feature_gates: FeatureGates = _setting(
        "", "Scheduling", "Accepted for compatibility, without effect: what the API server offers is used."
    )

    resource_reservation_namespace: Namespace = _setting(
        "kai-resource-reservation", "Reservation of GPUs", "Namespace of the reservation pods."
    )
    resource_reservation_service_account: Name = _setting(
        "kai-resource-reservation", "Reservation of GPUs", "Service account of the reservation pods."
    )
    resource_reservation_app_label: LabelValue = _setting(
        "kai-resource-reservation", "Reservation of GPUs", "Value of the label `app` of the reservation pods."
    )
    resource_reservation_pod_image: Image = _setting(
        PLACEHOLDER_IMAGE,
        "Reservation of GPUs",
        "Image of the reservation pods. Unless it is set, they run that of the binder's own pod; the default "
        "is a placeholder, for a binder that runs in no pod.",
    )
    resource_reservation_allocation_timeout: Seconds = _setting(
        40, "Reservation of GPUs", "How long to wait for a reservation pod to report its GPU, in seconds."
    )
    resource_reservation_pod_resources: Resources = _setting(
        None,
        "Reservation of GPUs",
        'JSON: resources of the reservation pods, as {"requests": {}, "limits": {}}.',
    )
    resource_reservation_pod_security_context: JSONObject = _setting(
        None, "Reservation of GPUs", "JSON: securityContext of the reservation pods."
    )
    resource_reservation_container_security_context: JSONObject = _setting(
        None, "Reservation of GPUs", "JSON: securityContext of the containers of the reservation pods."
    )
    resource_reservation_priority_class_name: MaybeName = _setting(
        "", "Reservation of GPUs", "PriorityClass of the reservation pods; empty for none."
    )

    fips_only: Switch = _setting(
        False, "Reservation of GPUs", "Reservation pods use only cryptography that FIPS 140-3 allows."
    )

    kubeconfig: str = _setting(
        "", "API server", "Path of a kubeconfig; empty: $KUBECONFIG, else in-cluster, else ~/.kube/config."
    )
    qps: Rate = _setting(
        50, "API server", "Requests per second to the API server, on average; -1 for no limit."
    )
    burst: Count = _setting(
        300, "API server", "Requests to the API server that may exceed the rate for a moment."
    )

    max_concurrent_reconciles: Count = _setting(
        10, "Work", "How many requests are worked on at the same time."
    )
    rate_limiter_base_delay: Seconds = _setting(
        1, "Work", "Delay before the first retry, in seconds; it then doubles."
    )
    rate_limiter_max_delay: Seconds = _setting(60, "Work", "Longest delay between retries, in seconds.")
    leader_elect: Switch = _setting(False, "Work", "Elect a leader, so that of several replicas one works.")
    leader_election_namespace: OwnNamespace = _setting(
        "", "Work", "Namespace of the Lease of the election; empty for the pod's own."
    )

    metrics_bind_address: BindAddress = _setting(":8080", "Endpoints", "Address of /metrics; 0 turns it off.")
    health_probe_bind_address: BindAddress = _setting(
        ":8081", "Endpoints", "Address of /healthz and /readyz; 0 turns them off."
    )

    zap_devel: Switch = _setting(
        True, "Logs", "false: JSON lines; true: text. Unlike zap's own, it leaves the level at info."
    )
    zap_encoder: ZapEncoder = _setting("", "Logs", "json or console; wins over --zap-devel.")
    zap_log_level: ZapLevel = _setting(
        "", "Logs", "debug, info, error, panic or a whole number (1 = debug, 2 and more = trace)."
    )
    zap_stacktrace_level: ZapStacktraceLevel = _setting(
        "", "Logs", "Accepted for compatibility, without effect: every exception comes with its trace."
    )
    zap_time_encoding: ZapTimeEncoding = _setting(
        "", "Logs", "Accepted for compatibility, without effect: times are ISO 8601."
    )
    log_level: Level = _setting(
        _level_from_zap, "Logs", "trace, debug, info, warning or error; wins over --zap-log-level."
    )
    log_format: LogFormat = _setting(
        _format_from_zap, "Logs", "text or json; wins over --zap-encoder and --zap-devel."
    )

    print_config: Switch = _setting(
        False, COMMANDS, "Print the settings in effect and the plugins in their order."
    )
    version: Switch = _setting(False, COMMANDS, "Print the version.")
    help: Switch = _setting(False, COMMANDS, "Print this text.")

    _ignored: tuple[str, ...] = ()
    _lenient_plugins: frozenset[str] = frozenset()

    @property
    def ignored(self) -> tuple[str, ...]:
        """What of the command line is not known, as a newer operator's may be, and was left out; in words."""
        return self._ignored

    @property
    def lenient_plugins(self) -> frozenset[str]:
        """Names in ``--plugins`` of which what is not known is to be left out, too."""
        return self._lenient_plugins

    @field_validator("rate_limiter_max_delay")
    @classmethod
    def _not_below_base(cls, value: float, info: ValidationInfo) -> float:
        base = info.data.get("rate_limiter_base_delay")
        if base is not None and value < base:
            raise ValueError(f"must not be below --rate-limiter-base-delay, which is {typed(base)}")
        return value

    @field_validator("health_probe_bind_address")
    @classmethod
    def _not_the_metrics(cls, value: str, info: ValidationInfo) -> str:
        health, metrics = parse_address(value), parse_address(info.data.get("metrics_bind_address", "0"))
        if health and metrics and health.overlaps(metrics):
            raise ValueError(f"must differ from --metrics-bind-address, which is {metrics}, or be 0")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Leaves only what is passed in: `load` reads the sources, so that it can name the one at fault."""
        return (init_settings,)


def load(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Reads and checks all settings.

    ``--help`` and ``--version`` win over all else, so that they answer however wrong the rest is.

    Args:
        argv: The command line without the name of the program.
        environ: The environment; of it only what begins with BINDER_ is looked at.

    Raises:
        SettingsError: With every problem found.
    """
    problems: list[str] = []
    ignored: list[str] = []
    fields = Settings.model_fields
    switches = {name: info.annotation is bool for name, info in fields.items()}
    flags = read_flags(argv, switches, problems, ignored)
    if "true" in (flags.get("help"), flags.get("version")):
        # Not checked: the defaults are right, and checking them takes what else a start needs.
        return Settings.model_construct(
            help=flags.get("help") == "true", version=flags.get("version") == "true"
        )
    variables = read_environment(
        environ, (name for name, info in fields.items() if group_of(info) != COMMANDS), problems
    )
    found = Found(problems, ignored)
    lenient = _collect(found, flags, variables)
    try:
        settings = Settings(**found.values)
    except ValidationError as error:
        problems += [
            found.explain(e["loc"], e["type"], e["msg"], e["input"])
            for e in error.errors()
            if e["type"] != "default_factory_not_called"  # follows from the others
        ]
    if problems:
        raise SettingsError(problems)
    settings._ignored, settings._lenient_plugins = tuple(ignored), lenient
    return settings


def _collect(
    found: Found, flags: Mapping[str, str], variables: Mapping[tuple[str, ...], tuple[str, str]]
) -> frozenset[str]:
    """Puts together what was given, lowest precedence first.

    Returns:
        The plugins that only the flag names, which a newer operator may know better than we do.
    """
    flag_plugins = found.json_object("--plugins", "", flags.get("plugins"))
    source, text = variables.get(("plugins",), ("", ""))
    plugins = found.json_object(source, "", text)
    for name, config in plugins.items():
        found.plugin(source, name, config)
    spelling = {name.lower(): name for name in (*plugins, *flag_plugins)}
    for (field, *nested), (source, text) in variables.items():
        if nested:
            name = spelling.get(nested[0], nested[0])
            found.plugin(source, name, {nested[1]: text} if len(nested) == 2 else text)
        elif field != "plugins":
            found.put(source, (field,), text)
    for name, config in flag_plugins.items():
        found.plugin("--plugins", name, config)
    for field, text in flags.items():
        if field != "plugins":
            found.put(flag_of(field), (field,), text)
    nested_names = {spelling.get(nested[0], nested[0]) for _, *nested in variables if nested}
    return frozenset(flag_plugins.keys() - plugins.keys() - nested_names - STRICT_PLUGINS)
