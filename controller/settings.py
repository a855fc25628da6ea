"""What a person can set: every flag, its environment variable, its default and what it accepts.

Called by ``__main__``, ``command`` and the composition roots. Each verb has one table of settings, a class
here; what all have in common is in ``setting_base``. What people see of them (``setting_texts``) is read off
the classes. Flags win over environment variables, these over defaults.

Invariant: nothing is read from the process itself (no ``os.environ``, no ``sys.argv``, no ``.env`` file);
`load` is given both, and reports all problems in one go, each under the name that the person typed. A
variable that any verb knows is accepted by each, since their containers may share one ConfigMap.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from pydantic import ValidationError, ValidationInfo, field_validator

from controller.setting_base import COMMANDS, CommonSettings, group_of, setting
from controller.setting_types import (
    NODE_POOL_LABEL,
    PLACEHOLDER_IMAGE,
    Count,
    FeatureGates,
    FilePath,
    Image,
    JSONObject,
    LabelValue,
    MaybeLabelKey,
    MaybeLabelValue,
    MaybeName,
    MaybeURL,
    MaybeUser,
    Name,
    Namespace,
    OwnNamespace,
    Rate,
    Resources,
    Seconds,
    ServingAddress,
    Switch,
    parse_address,
)
from controller.sources import (
    STRICT_PLUGINS,
    Found,
    flag_of,
    one_name,
    read_environment,
    read_flags,
    typed,
)


class SettingsError(Exception):
    """Some settings cannot be used.

    Attributes:
        problems: One line for each, naming the flag or variable, the value and what is allowed.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


def _key_of_pool(valid: dict[str, Any]) -> str:
    return NODE_POOL_LABEL if valid.get("partition_label_value") else ""


class Settings(CommonSettings):
    """All settings of the binder, checked; every duration in seconds."""

    verb: ClassVar[str] = "run"
    purpose: ClassVar[str] = "binds pods to the nodes and GPUs that the scheduler chose"
    strict_flags: ClassVar[str] = "--log-"  # ours, which no operator passes: an unknown one is a typing error

    partition_label_value: MaybeLabelValue = setting(
        "",
        "Scheduling",
        "Value of the label of the node pool to be served, as KAI's scheduler of that shard has it. If it is "
        "empty and there is a --nodepool-label-key: what does not have the label.",
    )
    nodepool_label_key: MaybeLabelKey = setting(
        _key_of_pool,
        "Scheduling",
        "Name of the label by which node pools are told apart; empty serves the whole cluster. If only a "
        f"value is given: {NODE_POOL_LABEL}.",
    )
    runtime_class_name: MaybeName = setting(
        "", "Scheduling", "RuntimeClass of the reservation pods; empty for none."
    )
    fake_gpu_nodes: Switch = setting(False, "Scheduling", "The cluster has nodes with fake GPUs.")
    scale_adjust_namespace: Namespace = setting(
        "kai-scale-adjust",
        "Scheduling",
        "Namespace of the scaling pods, which make a cluster autoscaler add nodes.",
    )
    feature_gates: FeatureGates = setting(
        "", "Scheduling", "Accepted for compatibility, without effect: what the API server offers is used."
    )

    resource_reservation_namespace: Namespace = setting(
        "kai-resource-reservation", "Reservation of GPUs", "Namespace of the reservation pods."
    )
    resource_reservation_service_account: Name = setting(
        "kai-resource-reservation", "Reservation of GPUs", "Service account of the reservation pods."
    )
    resource_reservation_app_label: LabelValue = setting(
        "kai-resource-reservation", "Reservation of GPUs", "Value of the label `app` of the reservation pods."
    )
    resource_reservation_pod_image: Image = setting(
        PLACEHOLDER_IMAGE,
        "Reservation of GPUs",
        "Image of the reservation pods. Unless it is set, they run that of the binder's own pod; the default "
        "is a placeholder, for a binder that runs in no pod.",
    )
    resource_reservation_allocation_timeout: Seconds = setting(
        40, "Reservation of GPUs", "How long to wait for a reservation pod to report its GPU, in seconds."
    )
    resource_reservation_pod_resources: Resources = setting(
        None,
        "Reservation of GPUs",
        'JSON: resources of the reservation pods, as {"requests": {}, "limits": {}}.',
    )
    resource_reservation_pod_security_context: JSONObject = setting(
        None, "Reservation of GPUs", "JSON: securityContext of the reservation pods."
    )
    resource_reservation_container_security_context: JSONObject = setting(
        None, "Reservation of GPUs", "JSON: securityContext of the containers of the reservation pods."
    )
    resource_reservation_priority_class_name: MaybeName = setting(
        "", "Reservation of GPUs", "PriorityClass of the reservation pods; empty for none."
    )

    fips_only: Switch = setting(
        False, "Reservation of GPUs", "Reservation pods use only cryptography that FIPS 140-3 allows."
    )

    qps: Rate = setting(
        50, "API server", "Requests per second to the API server, on average; -1 for no limit."
    )
    burst: Count = setting(
        300, "API server", "Requests to the API server that may exceed the rate for a moment."
    )

    max_concurrent_reconciles: Count = setting(
        10, "Work", "How many requests are worked on at the same time."
    )
    rate_limiter_base_delay: Seconds = setting(
        1, "Work", "Delay before the first retry, in seconds; it then doubles."
    )
    rate_limiter_max_delay: Seconds = setting(60, "Work", "Longest delay between retries, in seconds.")
    leader_elect: Switch = setting(False, "Work", "Elect a leader, so that of several replicas one works.")
    leader_election_namespace: OwnNamespace = setting(
        "", "Work", "Namespace of the Lease of the election; empty for the pod's own."
    )

    @field_validator("nodepool_label_key")
    @classmethod
    def _not_without_key(cls, key: str, info: ValidationInfo) -> str:
        value = info.data.get("partition_label_value")
        if value and not key:
            raise ValueError(f"must not be empty with --partition-label-value, which is {value}")
        return key

    @field_validator("rate_limiter_max_delay")
    @classmethod
    def _not_below_base(cls, value: float, info: ValidationInfo) -> float:
        base = info.data.get("rate_limiter_base_delay")
        if base is not None and value < base:
            raise ValueError(f"must not be below --rate-limiter-base-delay, which is {typed(base)}")
        return value


class AdmissionSettings(CommonSettings):
    """All settings of the admission webhook, checked."""

    verb: ClassVar[str] = "admission"
    purpose: ClassVar[str] = (
        "prepares pods that ask for a share of a GPU, and refuses what can never be bound"
    )
    strict_flags: ClassVar[str] = "--"  # no operator starts it

    webhook_bind_address: ServingAddress = setting(
        ":9443", "Admission", "Address on which the API server calls the webhook, by TLS."
    )
    binder_service_account_username: MaybeUser = setting(
        "system:serviceaccount:kai-scheduler:binder",
        "Admission",
        "The user who may write what only the binder may write on a pod; empty for nobody.",
    )
    block_nvidia_visible_devices: Switch = setting(
        False, "Admission", "Keep containers that ask for no GPU from setting NVIDIA_VISIBLE_DEVICES."
    )
    gpu_fraction_runtime_class_name: MaybeName = setting(
        "", "Admission", "RuntimeClass of pods that ask for a share and name none; empty to leave it alone."
    )
    binder_metrics_url: MaybeURL = setting(
        "http://binder.kai-scheduler.svc:8080/metrics",
        "Admission",
        "Where the binder says which plugins it runs, so that the webhook can say when its own differ; "
        "empty to compare nothing.",
    )

    tls_cert_file: FilePath = setting(
        "/etc/kai-binder/tls/tls.crt",
        "Certificate",
        "Path of the server's certificate with its chain, PEM; followed when it changes.",
    )
    tls_private_key_file: FilePath = setting(
        "/etc/kai-binder/tls/tls.key", "Certificate", "Path of the certificate's key, PEM."
    )
    self_signed_certificate: Switch = setting(
        False,
        "Certificate",
        "For trials: make a certificate, keep it in a Secret and write it into the webhook configurations, "
        "instead of reading files.",
    )
    webhook_namespace: Namespace = setting(
        "kai-scheduler", "Certificate", "Namespace of the webhook's Service and of that Secret."
    )
    webhook_service_name: Name = setting(
        "kai-binder-admission", "Certificate", "Name of that Service; the certificate is made for it."
    )
    webhook_secret_name: Name = setting(
        "kai-binder-admission-certificate", "Certificate", "Name of that Secret."
    )
    webhook_configuration_name: Name = setting(
        "kai-binder-admission",
        "Certificate",
        "Name of both webhook configurations, the mutating and the validating one.",
    )

    @field_validator("webhook_bind_address")
    @classmethod
    def _an_address_of_its_own(cls, value: str, info: ValidationInfo) -> str:
        own = parse_address(value)
        for name in ("metrics_bind_address", "health_probe_bind_address"):
            other = parse_address(info.data.get(name, "0"))
            if own and other and own.overlaps(other):
                raise ValueError(f"must differ from {flag_of(name)}, which is {other}")
        return value


VERBS: tuple[type[CommonSettings], ...] = (Settings, AdmissionSettings)
"""The verbs that have settings; the agent in a reservation pod has none."""

AnySettings = TypeVar("AnySettings", bound=CommonSettings)


def load(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Reads and checks all settings of the binder; see `load_as`."""
    return load_as(Settings, argv, environ)


def load_as(verb: type[AnySettings], argv: Sequence[str], environ: Mapping[str, str]) -> AnySettings:
    """Reads and checks all settings of a verb.

    ``--help`` and ``--version`` win over all else, so that they answer however wrong the rest is.

    Args:
        verb: The verb's class of settings.
        argv: The command line without the name of the program and the verb.
        environ: The environment; of it only what begins with BINDER_ is looked at.

    Raises:
        SettingsError: With every problem found.
    """
    problems: list[str] = []
    ignored: list[str] = []
    fields = verb.model_fields
    switches = {name: info.annotation is bool for name, info in fields.items()}
    flags = read_flags(argv, switches, problems, ignored, strict=verb.strict_flags)
    if "true" in (flags.get("help"), flags.get("version")):
        # Not checked: the defaults are right, and checking them takes what else a start needs.
        return verb.model_construct(help=flags.get("help") == "true", version=flags.get("version") == "true")
    variables = read_environment(environ, _variables_of(verb), _variables_of(*VERBS), problems)
    found = Found(problems, ignored)
    lenient = _collect(found, flags, variables)
    try:
        settings = verb(**found.values)
    except ValidationError as error:
        told = sorted(error.errors(), key=lambda fault: verb.position(str(fault["loc"][0])))
        problems += [
            found.explain(e["loc"], e["type"], e["msg"], e["input"])
            for e in told
            if e["type"] != "default_factory_not_called"  # follows from the others
        ]
    if problems:
        raise SettingsError(problems)
    settings._ignored, settings._lenient_plugins = tuple(ignored), lenient
    return settings


def _variables_of(*verbs: type[CommonSettings]) -> frozenset[str]:
    """The fields of these verbs that can be set in the environment."""
    return frozenset(
        name for verb in verbs for name, info in verb.model_fields.items() if group_of(info) != COMMANDS
    )


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
    nested_plugins = [
        (path[1], source, {path[2]: text} if len(path) == 3 else text)
        for path, (source, text) in variables.items()
        if len(path) > 1
    ]
    nested = [(name, config) for name, _, config in nested_plugins]
    other_name = one_name(flag_plugins.items(), plugins.items(), nested)
    for name, config in plugins.items():
        found.plugin(source, other_name.get(name, name), config)
    spelling = {name.lower(): name for name in (*plugins, *flag_plugins)} | other_name
    for name, source, config in nested_plugins:
        found.plugin(source, spelling.get(name, name), config)
    for path, (source, text) in variables.items():
        if len(path) == 1 and path != ("plugins",):
            found.put(source, path, text)
    for name, config in flag_plugins.items():
        found.plugin("--plugins", name, config)
    for field, text in flags.items():
        if field != "plugins":
            found.put(flag_of(field), (field,), text)
    theirs = {spelling.get(name, name) for name, _ in nested}
    return frozenset(flag_plugins.keys() - plugins.keys() - theirs - STRICT_PLUGINS)
