"""The settings that every verb of the command has, and how a setting is declared.

Called by ``settings``, which adds those of each verb. Invariant: a setting is declared once; its flag, its
variable, its default, what it accepts and what it means are read off that.
"""

from typing import Any, ClassVar

from pydantic import Field, JsonValue, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from controller.plugins.config import PluginConfig
from controller.setting_types import (
    BindAddress,
    Level,
    LogFormat,
    Name,
    Switch,
    ZapEncoder,
    ZapLevel,
    ZapStacktraceLevel,
    ZapTimeEncoding,
    parse_address,
)

COMMANDS = "Commands"
"""The group of what is a flag only, as it asks for something else than to run."""
GROUPS = (
    *("Scheduling", "Admission", "Certificate", "Reservation of GPUs", "API server", "Work", "Endpoints"),
    *("Logs", COMMANDS),
)
"""The headings under which settings are listed, in their order."""


def setting(default: Any, group: str, description: str) -> Any:  # noqa: ANN401
    """Declares a setting; a callable default is computed from the settings above it."""
    extra: dict[str, JsonValue] = {"group": group}
    if callable(default):
        return Field(default_factory=default, description=description, json_schema_extra=extra)
    return Field(default=default, description=description, json_schema_extra=extra)


def group_of(info: FieldInfo) -> str:
    """The heading under which a setting is listed."""
    extra = info.json_schema_extra
    return str(extra["group"]) if isinstance(extra, dict) else ""


def _level_from_zap(valid: dict[str, Any]) -> str:
    level = str(valid.get("zap_log_level", ""))
    if level.isdecimal():
        digits = level.lstrip("0")  # Python reads no number of more than 4300
        return "info" if not digits else "debug" if digits == "1" else "trace"
    return {"debug": "debug", "error": "error", "panic": "error"}.get(level, "info")


def _format_from_zap(valid: dict[str, Any]) -> str:
    encoder = valid.get("zap_encoder") or ("console" if valid.get("zap_devel", True) else "json")
    return "json" if encoder == "json" else "text"


class CommonSettings(BaseSettings):
    """What every verb can be told.

    The flag of a field is its name with dashes, the variable its name in upper case after BINDER_.

    Attributes:
        verb: The word on the command line.
        purpose: What the verb does, as the end of a sentence.
        strict_flags: A flag that begins so and is not known is an error; others may be a newer operator's.
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid", validate_default=True, defer_build=True)

    verb: ClassVar[str]
    purpose: ClassVar[str]
    strict_flags: ClassVar[str]

    scheduler_name: Name = setting(
        "kai-scheduler", "Scheduling", "Only pods with this spec.schedulerName are looked at."
    )
    plugins: dict[str, PluginConfig] = setting(
        {},
        "Scheduling",
        'JSON: plugin name -> {"enabled", "priority", "arguments", "failurePolicy"}, laid over the defaults. '
        "In the environment also one by one: BINDER_PLUGINS__<NAME>__ENABLED, …__PRIORITY, …__FAILUREPOLICY, "
        "…__ARGUMENTS (a JSON object).",
    )

    kubeconfig: str = setting(
        "", "API server", "Path of a kubeconfig; empty: $KUBECONFIG, else in-cluster, else ~/.kube/config."
    )

    metrics_bind_address: BindAddress = setting(":8080", "Endpoints", "Address of /metrics; 0 turns it off.")
    health_probe_bind_address: BindAddress = setting(
        ":8081", "Endpoints", "Address of /healthz and /readyz; 0 turns them off."
    )

    zap_devel: Switch = setting(
        True, "Logs", "false: JSON lines; true: text. Unlike zap's own, it leaves the level at info."
    )
    zap_encoder: ZapEncoder = setting("", "Logs", "json or console; wins over --zap-devel.")
    zap_log_level: ZapLevel = setting(
        "", "Logs", "debug, info, error, panic or a whole number (1 = debug, 2 and more = trace)."
    )
    zap_stacktrace_level: ZapStacktraceLevel = setting(
        "", "Logs", "Accepted for compatibility, without effect: every exception comes with its trace."
    )
    zap_time_encoding: ZapTimeEncoding = setting(
        "", "Logs", "Accepted for compatibility, without effect: times are ISO 8601."
    )
    log_level: Level = setting(
        _level_from_zap, "Logs", "trace, debug, info, warning or error; wins over --zap-log-level."
    )
    log_format: LogFormat = setting(
        _format_from_zap, "Logs", "text or json; wins over --zap-encoder and --zap-devel."
    )

    print_config: Switch = setting(
        False, COMMANDS, "Print the settings in effect and the plugins in their order."
    )
    version: Switch = setting(False, COMMANDS, "Print the version.")
    help: Switch = setting(False, COMMANDS, "Print this text.")

    @classmethod
    def listed(cls) -> dict[str, FieldInfo]:
        """All settings by field, as they are listed: group by group."""
        fields = cls.model_fields.items()
        return dict(sorted(fields, key=lambda item: GROUPS.index(group_of(item[1]))))

    @classmethod
    def position(cls, field: str) -> int:
        """Where a setting stands in that list."""
        return list(cls.listed()).index(field)

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
