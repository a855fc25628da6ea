"""What a person can set: every flag, its environment variable, its default and what it accepts.

Called by ``__main__`` and ``app`` only. The one table of settings is the class `Settings`; the help text, the
table in the README and ``--print-config`` are read off it. Flags win over environment variables, these over
defaults.

Invariant: nothing is read from the process itself (no ``os.environ``, no ``sys.argv``, no ``.env`` file);
`load` is given both, and reports all problems in one go, each under the name that the person typed.
"""

import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    ValidationError,
    ValidationInfo,
    WrapValidator,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from controller.plugins.registry import PluginConfig
from controller.runtime.endpoints import Address
from controller.sources import (
    Found,
    flag_of,
    parse_json_object,
    read_environment,
    read_flags,
    typed,
    variable_of,
)

LogLevel = Literal["trace", "debug", "info", "warning", "error"]

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_QUANTITY = re.compile(r"\+?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+|[KMGTPE]i|[numkMGTPE])?")
_YAML_PLAIN = re.compile(r"[A-Za-z0-9/:][\w./:@-]*")


class SettingsError(Exception):
    """Some settings cannot be used.

    Attributes:
        problems: One line for each, naming the flag or variable, the value and what is allowed.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


def _only(allowed: str) -> WrapValidator:
    """Replaces pydantic's own complaints about a value by one sentence that says what is allowed."""

    def check(value: Any, handler: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        try:
            return handler(value)
        except ValidationError:
            raise ValueError(f"must be {allowed}") from None

    return WrapValidator(check)


def _check_resources(value: dict[str, Any] | None) -> dict[str, Any] | None:
    wrong = []
    for kind in ("requests", "limits"):
        amounts = (value or {}).get(kind)
        if amounts is not None and not isinstance(amounts, dict):
            wrong.append(f"{kind} must be a JSON object")
            continue
        for name, amount in (amounts or {}).items():
            if isinstance(amount, bool) or not _QUANTITY.fullmatch(str(amount)):
                wrong.append(
                    f'{kind}.{name} is {json.dumps(amount)}, but must be a quantity such as "100m" or "64Mi"'
                )
    if wrong:
        raise ValueError("; ".join(wrong))
    return value


def _check_feature_gates(value: str) -> str:
    if any(
        not re.fullmatch(r"\w+=(?i:true|false)", gate.strip()) for gate in value.split(",") if gate.strip()
    ):
        raise ValueError("must be a list such as Name=true,Other=false")
    return value


def _check_zap_level(value: str) -> str:
    if value.lower() not in ("", "debug", "info", "error", "panic") and not re.fullmatch(r"\d+", value):
        raise ValueError(
            "must be debug, info, error, panic or a whole number (1 = debug, 2 and more = trace)"
        )
    return value.lower()


def _check_address(value: str) -> str:
    Address.parse(value)
    return value


def _check_rate(value: float) -> float:
    if value <= 0 and value != -1:
        raise ValueError
    return value


Switch = Annotated[bool, _only("true or false")]
Count = Annotated[int, Field(ge=1), _only("a whole number, 1 or more")]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), _only("a number of seconds above 0")]
Rate = Annotated[
    float,
    Field(allow_inf_nan=False),
    AfterValidator(_check_rate),
    _only("a number above 0, or -1 for no limit"),
]
Namespace = Annotated[
    str,
    Field(pattern=f"^{_LABEL}$", max_length=63),
    _only("a namespace: at most 63 of a-z, 0-9 and '-', a letter or digit first and last"),
]
OwnNamespace = Annotated[
    str,
    Field(pattern=f"^({_LABEL})?$", max_length=63),
    _only("empty or a namespace: at most 63 of a-z, 0-9 and '-', a letter or digit first and last"),
]
Name = Annotated[
    str,
    Field(pattern=rf"^{_LABEL}(\.{_LABEL})*$", max_length=253),
    _only("a Kubernetes name: a-z, 0-9, '-' and '.', a letter or digit first and last"),
]
MaybeName = Annotated[
    str,
    Field(pattern=rf"^({_LABEL}(\.{_LABEL})*)?$", max_length=253),
    _only("empty or a Kubernetes name: a-z, 0-9, '-' and '.', a letter or digit first and last"),
]
LabelValue = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", max_length=63),
    _only("a label value: at most 63 letters, digits, '-', '_' and '.', a letter or digit first and last"),
]
BindAddress = Annotated[str, BeforeValidator(_check_address)]
JSONObject = Annotated[dict[str, Any] | None, BeforeValidator(parse_json_object)]


def _level_from_zap(valid: dict[str, Any]) -> str:
    level = str(valid.get("zap_log_level", ""))
    if level.isdecimal():
        return "info" if int(level) == 0 else "debug" if int(level) == 1 else "trace"
    return {"debug": "debug", "error": "error", "panic": "error"}.get(level, "info")


def _format_from_zap(valid: dict[str, Any]) -> str:
    encoder = valid.get("zap_encoder") or ("console" if valid.get("zap_devel", True) else "json")
    return "json" if encoder == "json" else "text"


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
    feature_gates: Annotated[str, BeforeValidator(_check_feature_gates)] = _setting(
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
    resource_reservation_pod_image: Annotated[
        str, Field(pattern=r"^\S+$"), _only("an image, without spaces")
    ] = _setting(
        "registry/local/kai-scheduler/resource-reservation",
        "Reservation of GPUs",
        "Image of the reservation pods.",
    )
    resource_reservation_allocation_timeout: Seconds = _setting(
        40, "Reservation of GPUs", "How long to wait for a reservation pod to report its GPU, in seconds."
    )
    resource_reservation_pod_resources: Annotated[JSONObject, AfterValidator(_check_resources)] = _setting(
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
    zap_encoder: Annotated[Literal["", "json", "console"], _only("json or console")] = _setting(
        "", "Logs", "json or console; wins over --zap-devel."
    )
    zap_log_level: Annotated[str, BeforeValidator(_check_zap_level)] = _setting(
        "", "Logs", "debug, info, error, panic or a whole number (1 = debug, 2 and more = trace)."
    )
    zap_stacktrace_level: Annotated[Literal["", "info", "error", "panic"], _only("info, error or panic")] = (
        _setting(
            "", "Logs", "Accepted for compatibility, without effect: every exception comes with its trace."
        )
    )
    zap_time_encoding: Annotated[
        Literal["", "epoch", "millis", "nano", "iso8601", "rfc3339", "rfc3339nano"],
        _only("epoch, millis, nano, iso8601, rfc3339 or rfc3339nano"),
    ] = _setting("", "Logs", "Accepted for compatibility, without effect: times are ISO 8601.")
    log_level: Annotated[LogLevel, _only(f"one of {', '.join(get_args(LogLevel))}")] = _setting(
        _level_from_zap, "Logs", "trace, debug, info, warning or error; wins over --zap-log-level."
    )
    log_format: Annotated[Literal["text", "json"], _only("text or json")] = _setting(
        _format_from_zap, "Logs", "text or json; wins over --zap-encoder and --zap-devel."
    )

    print_config: Switch = _setting(
        False, "Commands", "Print the settings in effect and the plugins in their order."
    )
    version: Switch = _setting(False, "Commands", "Print the version.")
    help: Switch = _setting(False, "Commands", "Print this text.")

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
        health, metrics = Address.parse(value), Address.parse(info.data.get("metrics_bind_address", "0"))
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


class SettingRow(NamedTuple):
    """One setting, as the help and the README show it.

    Attributes:
        flag: With its dashes.
        env: The environment variable; empty for the commands, which are flags only.
        default: As a person would type it; empty if nothing is set.
        description: One or two sentences.
        group: The heading under which it is listed.
    """

    flag: str
    env: str
    default: str
    description: str
    group: str


def rows() -> list[SettingRow]:
    """Lists all settings in the order of their groups."""
    return [_row(name, info) for name, info in Settings.model_fields.items()]


def _row(name: str, info: FieldInfo) -> SettingRow:
    extra = info.json_schema_extra
    group = str(extra["group"]) if isinstance(extra, dict) else ""
    default = info.get_default(call_default_factory=True, validated_data={})
    env = "" if group == "Commands" else variable_of(name)
    return SettingRow(flag_of(name), env, typed(default), info.description or "", group)


def help_text() -> str:
    """Renders the text of ``--help``: each flag with its variable, its default and what it does."""
    lines = [
        "kai-binder: binds pods to the nodes and GPUs that the scheduler chose.",
        "",
        "Flags win over environment variables, these over defaults. --flag value, --flag=value, -flag value;",
        "a switch is set by --flag alone or --flag=true|false.",
    ]
    group = ""
    for row in rows():
        if row.group != group:
            group = row.group
            lines += ["", f"{group}:"]
        notes = ", ".join(
            filter(None, (row.env, f"default {row.default}" if row.default and row.env else ""))
        )
        lines.append(f"  {row.flag}" + (f"  ({notes})" if notes else ""))
        lines += textwrap.wrap(row.description, 100, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines) + "\n"


def describe(settings: Settings) -> str:
    """Renders the settings in effect as YAML, each value as a person would type it."""
    lines = []
    for name in (name for name, info in Settings.model_fields.items() if _row(name, info).env):
        value = getattr(settings, name)
        text = typed(value)
        if not text or (isinstance(value, str) and not _YAML_PLAIN.fullmatch(text)):
            text = json.dumps(text)
        lines.append(f"{name.replace('_', '-')}: {text}")
    return "\n".join(lines) + "\n"


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
    fields = Settings.model_fields
    flags = read_flags(argv, {name: info.annotation is bool for name, info in fields.items()}, problems)
    if "true" in (flags.get("help"), flags.get("version")):
        return Settings(help=flags.get("help") == "true", version=flags.get("version") == "true")
    variables = read_environment(
        environ, (name for name, info in fields.items() if _row(name, info).env), problems
    )
    found = Found(problems)

    flag_plugins = found.json_object("--plugins", "", flags.pop("plugins", None))
    source, text = variables.pop(("plugins",), ("", ""))
    plugins = found.json_object(source, "", text)
    for name, config in plugins.items():
        found.plugin(source, name, config)
    spelling = {name.lower(): name for name in (*plugins, *flag_plugins)}
    for (field, *nested), (source, text) in variables.items():
        if nested:
            name = spelling.get(nested[0], nested[0])
            found.plugin(source, name, {nested[1]: text} if len(nested) == 2 else text)
        else:
            found.put(source, (field,), text)
    for name, config in flag_plugins.items():
        found.plugin("--plugins", name, config)
    for field, text in flags.items():
        found.put(flag_of(field), (field,), text)

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
    return settings
