"""Settings by flag and environment: the Go binder's table, precedence, what is said of bad values."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from controller.plugins.config import PluginConfig
from controller.setting_texts import describe, help_text, rows
from controller.settings import Settings, SettingsError, load

# Flags of the Go binder and their defaults, as typed.
UPSTREAM = {
    "--scheduler-name": "kai-scheduler",
    "--resource-reservation-namespace": "kai-resource-reservation",
    "--resource-reservation-service-account": "kai-resource-reservation",
    "--resource-reservation-app-label": "kai-resource-reservation",
    "--fips-only": "false",
    "--resource-reservation-pod-image": "registry/local/kai-scheduler/resource-reservation",
    "--resource-reservation-allocation-timeout": "40",
    "--resource-reservation-pod-resources": "",
    "--resource-reservation-pod-security-context": "",
    "--resource-reservation-container-security-context": "",
    "--plugins": "",
    "--scale-adjust-namespace": "kai-scale-adjust",
    "--qps": "50",
    "--burst": "300",
    "--max-concurrent-reconciles": "10",
    "--rate-limiter-base-delay": "1",
    "--rate-limiter-max-delay": "60",
    "--leader-elect": "false",
    "--metrics-bind-address": ":8080",
    "--health-probe-bind-address": ":8081",
    "--fake-gpu-nodes": "false",
    "--runtime-class-name": "",
    "--feature-gates": "",
    "--kubeconfig": "",
    "--zap-devel": "true",
    "--zap-encoder": "",
    "--zap-log-level": "",
    "--zap-stacktrace-level": "",
    "--zap-time-encoding": "",
}
POOL = "kai.scheduler/node-pool"
OWN = {
    "--log-level": "info",
    "--log-format": "text",
    "--resource-reservation-priority-class-name": "",
    "--leader-election-namespace": "",
    "--nodepool-label-key": "",
    "--partition-label-value": "",
    "--print-config": "false",
    "--version": "false",
    "--help": "false",
}


def problems(argv: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(argv, environ or {})
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems


def test_every_flag_of_the_go_binder_is_there_with_its_default() -> None:
    assert {row.flag: row.default for row in rows()} == UPSTREAM | OWN


def test_every_flag_but_the_commands_has_its_variable() -> None:
    commands = {"--print-config", "--version", "--help"}
    assert {row.flag: row.env for row in rows() if row.env} == {
        flag: "BINDER_" + flag[2:].upper().replace("-", "_") for flag in (UPSTREAM | OWN).keys() - commands
    }
    assert all(row.description.endswith((".", ")")) for row in rows())


def test_help_names_every_flag_variable_and_default() -> None:
    text = help_text()
    for row in rows():
        assert row.flag in text
        assert row.env in text
        if row.env:
            assert row.default in text


def test_nothing_given_is_the_defaults() -> None:
    settings = load([], {})
    assert settings == Settings()
    assert settings.qps == 50
    assert settings.plugins == {}
    assert settings.resource_reservation_pod_resources is None


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        load([], {}).qps = 1


def test_the_command_line_of_the_go_operator() -> None:
    sharing = '{"enabled":true,"priority":100,"arguments":{"cdiEnabled":"true"}}'
    words = "--scheduler-name my-scheduler --health-probe-bind-address :9081 --metrics-bind-address :9080"
    words += " --max-concurrent-reconciles=20 --fake-gpu-nodes --leader-elect --qps 20 --burst 100"
    words += f' --plugins {{"gpusharing":{sharing},"hamicore":{{"enabled":false}}}}'
    words += " --zap-devel=false --runtime-class-name=nvidia"
    words += ' --resource-reservation-pod-resources={"requests":{"cpu":"50m"},"limits":{"memory":"64Mi"}}'
    words += ' --resource-reservation-pod-security-context={"runAsNonRoot":true}'
    settings = load(words.split(), {})
    assert (settings.scheduler_name, settings.max_concurrent_reconciles) == ("my-scheduler", 20)
    assert (settings.qps, settings.burst) == (20, 100)
    assert settings.fake_gpu_nodes
    assert settings.leader_elect
    assert (settings.log_level, settings.log_format) == ("info", "json")
    assert settings.resource_reservation_pod_security_context == {"runAsNonRoot": True}
    assert settings.plugins == {
        "gpusharing": PluginConfig(enabled=True, priority=100, arguments={"cdiEnabled": "true"}),
        "hamicore": PluginConfig(enabled=False),
    }


@pytest.mark.parametrize("words", [["--qps", "5"], ["--qps=5"], ["-qps", "5"], ["-qps=5"]])
def test_all_spellings_of_a_flag(words: list[str]) -> None:
    assert load(words, {}).qps == 5


@pytest.mark.parametrize(
    "word", ["--leader-elect", "-leader-elect", "--leader-elect=true", "--leader-elect=T"]
)
def test_a_switch_needs_no_value(word: str) -> None:
    settings = load([word, "--qps", "5"], {})
    assert (settings.leader_elect, settings.qps) == (True, 5)


def test_a_switch_is_turned_off() -> None:
    assert not load(["--leader-elect=false"], {"BINDER_LEADER_ELECT": "true"}).leader_elect


def test_the_last_of_several_wins() -> None:
    assert load(["--qps", "1", "--qps=2"], {}).qps == 2
    assert set(load(["--plugins", '{"a":{}}', "--plugins", '{"b":{}}'], {}).plugins) == {"b"}


def test_a_negative_number_is_a_value() -> None:
    assert load(["--qps", "-1"], {}).qps == -1


def test_values_with_equals_signs_and_line_breaks() -> None:
    assert load(["--kubeconfig=/a=b\nc"], {}).kubeconfig == "/a=b\nc"


def test_flags_win_over_environment_over_defaults() -> None:
    environ = {"BINDER_QPS": "7", "BINDER_BURST": "70", "binder_scheduler_name": "other"}
    settings = load(["--qps", "5"], environ)
    assert (settings.qps, settings.burst, settings.max_concurrent_reconciles) == (5, 70, 10)
    assert settings.scheduler_name == "other"


def test_only_what_is_given_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("BINDER_QPS=7\nQPS=7\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BINDER_QPS", "8")
    monkeypatch.setenv("QPS", "8")
    assert load([], {"QPS": "9", "PATH": "/bin"}).qps == 50
    assert Settings().qps == 50


def test_variables_of_a_service_called_binder_are_not_ours() -> None:
    names = ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP_METRICS", "PORT", "PORT_8080_TCP"]
    names += [
        "PORT_8080_TCP_PROTO",
        "PORT_8080_TCP_ADDR",
        "PORT_8080_TCP_PORT",
        "METRICS_SERVICE_HOST",
        "METRICS_PORT",
    ]
    assert load([], {f"BINDER_{name}": "tcp://10.0.0.1:8080" for name in names}) == Settings()


def test_plugins_from_the_environment_one_by_one() -> None:
    settings = load(
        [],
        {
            "BINDER_PLUGINS__GPUMEMORYLIMIT__ENABLED": "true",
            "BINDER_PLUGINS__GPUMEMORYLIMIT__PRIORITY": "40",
            "BINDER_PLUGINS__GPUMEMORYLIMIT__FAILUREPOLICY": "Ignore",
            "BINDER_PLUGINS__GpuSharing__Arguments": '{"cdiEnabled":"true"}',
            "BINDER_PLUGINS__HAMICORE__FAILURE_POLICY": "Fail",
            "BINDER_PLUGINS__VOLUMEBINDING": '{"enabled":false}',
        },
    )
    assert settings.plugins == {
        "gpumemorylimit": PluginConfig(enabled=True, priority=40, failurePolicy="Ignore"),
        "gpusharing": PluginConfig(arguments={"cdiEnabled": "true"}),
        "hamicore": PluginConfig(failurePolicy="Fail"),
        "volumebinding": PluginConfig(enabled=False),
    }


def test_plugins_from_all_sources_are_merged_key_by_key() -> None:
    settings = load(
        ["--plugins", '{"gpusharing":{"priority":1,"arguments":{"a":"flag"}},"MyOwn":{"priority":3}}'],
        {
            "BINDER_PLUGINS": '{"gpusharing":{"priority":9,"arguments":{"a":"env","b":"env"}}}',
            "BINDER_PLUGINS__GPUSHARING": '{"enabled":false}',
            "BINDER_PLUGINS__GPUSHARING__ENABLED": "true",
            "BINDER_PLUGINS__MYOWN__ENABLED": "false",
        },
    )
    assert settings.plugins == {
        "gpusharing": PluginConfig(enabled=True, priority=1, arguments={"a": "flag", "b": "env"}),
        "MyOwn": PluginConfig(enabled=False, priority=3),
    }


def test_null_is_not_given_and_an_empty_map_is() -> None:
    settings = load(["--plugins", '{"a":{"enabled":null,"arguments":{}},"b":null}'], {})
    assert settings.plugins == {"a": PluginConfig(arguments={}), "b": PluginConfig()}


@pytest.mark.parametrize("empty", ["", " ", "null"])
def test_empty_json_is_unset(empty: str) -> None:
    flags = [row.flag for row in rows() if row.description.startswith("JSON")]
    assert len(flags) == 4
    assert load([f"{flag}={empty}" for flag in flags], {"BINDER_PLUGINS": empty}) == Settings()


@pytest.mark.parametrize(
    ("argv", "level", "fmt"),
    [
        ([], "info", "text"),
        (["--zap-devel"], "info", "text"),
        (["--zap-devel=false"], "info", "json"),
        (["--zap-devel=false", "--zap-encoder=console"], "info", "text"),
        (["--zap-encoder", "json"], "info", "json"),
        (["--zap-log-level=debug"], "debug", "text"),
        (["--zap-log-level", "error"], "error", "text"),
        (["--zap-log-level=INFO"], "info", "text"),
        (["--zap-log-level=panic"], "error", "text"),
        (["--zap-log-level=0"], "info", "text"),
        (["--zap-log-level=1"], "debug", "text"),
        (["--zap-log-level=5"], "trace", "text"),
        (["--zap-log-level=10"], "trace", "text"),
        (["--zap-log-level=001"], "debug", "text"),
        (["--zap-log-level", "9" * 5000], "trace", "text"),
        (["--zap-log-level", "0" * 5000], "info", "text"),
        (["--zap-log-level=5", "--log-level=warning"], "warning", "text"),
        (["--zap-devel=false", "--log-format=text"], "info", "text"),
    ],
)
def test_zap_flags_become_level_and_format(argv: list[str], level: str, fmt: str) -> None:
    settings = load(argv, {})
    assert (settings.log_level, settings.log_format) == (level, fmt)


def test_own_log_setting_in_the_environment_wins_over_a_zap_flag() -> None:
    assert load(["--zap-log-level=debug"], {"BINDER_LOG_LEVEL": "error"}).log_level == "error"


@pytest.mark.parametrize("flag", ["help", "version"])
def test_help_and_version_answer_however_wrong_the_rest_is(flag: str) -> None:
    settings = load(["--nonsense", f"--{flag}"], {"BINDER_QPS": "abc", "BINDER_NONSENSE": ""})
    assert getattr(settings, flag)
    assert load(["-h"], {}).help


@pytest.mark.parametrize("value", [":8080", "localhost:80", "10.0.0.1:65535", "[::1]:80", "0", "127.0.0.1:0"])
def test_good_addresses(value: str) -> None:
    assert load(["--metrics-bind-address", value], {}).metrics_bind_address == value


@pytest.mark.parametrize(
    "argv",
    [
        ["--metrics-bind-address=0", "--health-probe-bind-address=0"],
        ["--metrics-bind-address=127.0.0.1:80", "--health-probe-bind-address=127.0.0.2:80"],
        ["--metrics-bind-address=:80", "--health-probe-bind-address=:81"],
        ["--rate-limiter-base-delay=60"],
        ["--leader-election-namespace=a", "--leader-elect"],
        ["--feature-gates=DynamicResourceAllocation=true,Other=false"],
        [
            "--resource-reservation-pod-resources",
            '{"limits":{"cpu":1,"memory":"1.5Gi","x.io/y":"1e3"},"claims":[]}',
        ],
    ],
)
def test_good_values_and_combinations(argv: list[str]) -> None:
    load(argv, {})


@pytest.mark.parametrize(
    ("argv", "pool"),
    [
        ([], ("", "")),
        (["--nodepool-label-key=kai.scheduler/node-pool", "--partition-label-value="], (POOL, "")),
        (["--nodepool-label-key=kai.scheduler/node-pool", "--partition-label-value=A_1"], (POOL, "A_1")),
        (["--nodepool-label-key", POOL, "--partition-label-value", "a.b"], (POOL, "a.b")),
        (["--partition-label-value=a"], (POOL, "a")),
        (["--nodepool-label-key=pool", "--partition-label-value=a"], ("pool", "a")),
        (["--nodepool-label-key="], ("", "")),
    ],
)
def test_the_node_pool_as_kais_scheduler_is_told(argv: list[str], pool: tuple[str, str]) -> None:
    """Unlike the scheduler's, the default is the whole cluster: KAI runs one binder for all its shards."""
    told = load(argv, {})
    assert (told.nodepool_label_key, told.partition_label_value) == pool
    environ = {"BINDER_NODEPOOL_LABEL_KEY": pool[0], "BINDER_PARTITION_LABEL_VALUE": pool[1]}
    assert load([], environ) == told


@pytest.mark.parametrize("key", ["a b", "/a", "a/", "a//b", "A/b", "a,b", "a=b", "!a", "-", "a" * 64])
def test_the_name_of_a_label(key: str) -> None:
    (problem,) = problems(["--nodepool-label-key", key] if key != "-" else ["--nodepool-label-key=-"])
    assert "must be empty or the name of a label such as kai.scheduler/node-pool" in problem


def test_a_value_of_no_label() -> None:
    (problem,) = problems(["--nodepool-label-key=", "--partition-label-value=a"])
    assert "must not be empty with --partition-label-value, which is a" in problem
    (problem,) = problems(["--partition-label-value=a b"])
    assert "must be empty or a label value: at most 63" in problem


NAMESPACE = "a namespace: at most 63 of a-z, 0-9 and '-', a letter or digit first and last"
NAME = "a Kubernetes name: a-z, 0-9, '-' and '.', a letter or digit first and last"
ADDRESS = "an address such as :8080, 127.0.0.1:8080 or [::1]:8080, or 0 for off"
RATE = "a number above 0, or -1 for no limit"
COUNT = "a whole number, 1 or more"
SECONDS = "a number of seconds above 0"


@pytest.mark.parametrize(
    ("flag", "value", "allowed"),
    [
        ("qps", "abc", RATE),
        ("qps", "0", RATE),
        ("qps", "-2", RATE),
        ("qps", "nan", RATE),
        ("qps", "", RATE),
        ("burst", "0", COUNT),
        ("burst", "1.5", COUNT),
        ("max-concurrent-reconciles", "-1", COUNT),
        ("rate-limiter-base-delay", "0", SECONDS),
        ("resource-reservation-allocation-timeout", "inf", SECONDS),
        ("leader-elect", "maybe", "true or false"),
        ("metrics-bind-address", "8080", ADDRESS),
        ("metrics-bind-address", "", ADDRESS),
        ("metrics-bind-address", "::1:80", ADDRESS),
        ("health-probe-bind-address", ":70000", ADDRESS),
        ("scale-adjust-namespace", "Kai_1", NAMESPACE),
        ("scale-adjust-namespace", "a" * 64, NAMESPACE),
        ("resource-reservation-namespace", "", NAMESPACE),
        ("leader-election-namespace", "a.b", f"empty or {NAMESPACE}"),
        ("scheduler-name", "", NAME),
        ("resource-reservation-service-account", "a_b", NAME),
        ("runtime-class-name", "-", f"empty or {NAME}"),
        ("resource-reservation-priority-class-name", "A", f"empty or {NAME}"),
        ("resource-reservation-pod-image", "a b", "an image, without spaces"),
        ("zap-encoder", "xml", "json or console"),
        ("zap-stacktrace-level", "loud", "info, error or panic"),
        ("zap-time-encoding", "x", "epoch, millis, nano, iso8601, rfc3339 or rfc3339nano"),
        (
            "zap-log-level",
            "-1",
            "debug, info, error, panic or a whole number (1 = debug, 2 and more = trace)",
        ),
        ("log-level", "loud", "one of trace, debug, info, warning, error"),
        ("log-format", "xml", "text or json"),
        ("feature-gates", "A", "a list such as Name=true,Other=false"),
        ("resource-reservation-pod-security-context", "[]", "a JSON object, in braces"),
        ("plugins", "[1]", "a JSON object, in braces"),
    ],
)
def test_a_bad_value_is_told_with_its_flag_or_variable_and_what_is_allowed(
    flag: str, value: str, allowed: str
) -> None:
    variable = "BINDER_" + flag.upper().replace("-", "_")
    assert problems([f"--{flag}={value}"]) == [f"--{flag}: {value!r} must be {allowed}"]
    assert problems([], {variable: value}) == [f"{variable}: {value!r} must be {allowed}"]


QUANTITY = 'must be a quantity such as "100m" or "64Mi"'
RESOURCES = "--resource-reservation-pod-resources"


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        (
            "--rate-limiter-base-delay=61",
            "--rate-limiter-max-delay: 60 must not be below --rate-limiter-base-delay, which is 61",
        ),
        (
            "--metrics-bind-address=[::]:8081",
            "--health-probe-bind-address: ':8081' must differ from --metrics-bind-address, which is [::]:80",
        ),
        (f"{RESOURCES}={{", f"{RESOURCES}: '{{' must be a JSON object; it is no JSON: Expecting property"),
        (f'{RESOURCES}={{"limits":{{"cpu":"4x"}}}}', f'limits.cpu is "4x", but {QUANTITY}'),
        (f'{RESOURCES}={{"limits":{{"cpu":true}}}}', f"limits.cpu is true, but {QUANTITY}"),
        (f'{RESOURCES}={{"requests":{{"cpu":"-1"}}}}', f'requests.cpu is "-1", but {QUANTITY}'),
        (f'{RESOURCES}={{"requests":[]}}', "requests must be a JSON object"),
        ("--plugins={", "--plugins: '{' must be a JSON object; it is no JSON: Expecting property name"),
        ("--plugins=" + "[" * 100_000, "--plugins: '[[[[["),
        ('--plugins={"a":1}', "--plugins: a: 1 must be a JSON object, in braces"),
        ('--plugins={"a":{"arguments":[]}}', "--plugins: a.arguments: [] must be a JSON object, in braces"),
        ('--plugins={"a":{"enabled":"perhaps"}}', "--plugins: a.enabled 'perhaps' must be a boolean"),
        ('--plugins={"a":{"priority":1.5}}', "--plugins: a.priority 1.5 must be a"),
        ('--plugins={"a":{"arguments":{"b":true}}}', "--plugins: a.arguments.b true must be a string"),
        (
            '--plugins={"a":{"failurePolicy":"Retry"}}',
            "--plugins: a.failurePolicy 'Retry' must be 'Fail' or 'Ignore'",
        ),
        (
            '--plugins={"gpumemorylimit":{"enabld":true}}',
            "--plugins: gpumemorylimit.enabld is no known key; known are enabled, priority, arguments, "
            "failurePolicy; did you mean enabled?",
        ),
        ('--plugins={"hamicore":{"enabld":true}}', "--plugins: hamicore.enabld is no known key"),
        ("--log-lvel=debug", "--log-lvel is no known flag; did you mean --log-level?"),
        ("-log-levels=debug", "-log-levels is no known flag; did you mean --log-level?"),
        ("--kubeconfig", "--kubeconfig needs a value"),
        ("false", "'false' is no flag; a switch is turned off by --flag=false"),
        ("--", "'--' is no flag"),
    ],
)
def test_other_bad_flags_are_told_in_one_line(word: str, problem: str) -> None:
    (found,) = problems([word])
    assert problem in found
    assert found.startswith(problem[:2] if problem.startswith(("-", "'")) else RESOURCES)
    assert "\n" not in found


@pytest.mark.parametrize(
    ("words", "ignored"),
    [
        (["--burts=3"], ("--burts is no known flag; did you mean --burst?",)),
        (["-qsp", "3"], ("-qsp is no known flag; did you mean --qps?",)),
        (["--xyzzy"], ("--xyzzy is no known flag",)),
        (["--xx", "1", "--yy", "-1", "--zz"], tuple(f"--{2 * name} is no known flag" for name in "xyz")),
        (['--plugins={"a":{"enabld":true}}'], ("--plugins: a.enabld is no known key",)),
    ],
)
def test_what_a_newer_operator_may_pass_is_left_out(words: list[str], ignored: tuple[str, ...]) -> None:
    """N-22, N-23: it must not keep the binder from starting; what follows counts."""
    settings = load([*words, "--qps", "7"], {})
    assert settings.qps == 7
    assert settings.ignored == ignored


def test_what_is_in_the_environment_is_nobody_elses() -> None:
    flag = '--plugins={"new":{},"both":{},"hamicore":{}}'
    settings = load(
        [flag], {"BINDER_PLUGINS__BOTH__ENABLED": "true", "BINDER_PLUGINS__MINE__ENABLED": "true"}
    )
    assert settings.lenient_plugins == {"new"}
    assert load([], {}).lenient_plugins == set()


OF_THE_OPERATOR = '--plugins={"hamicore":{"enabled":false,"priority":50}}'


@pytest.mark.parametrize("name", ["HAMICORE", "GPUMEMORYLIMIT"])
def test_the_flag_and_the_environment_may_name_the_limit_differently(name: str) -> None:
    """The operator's flag always names hamicore (B-104, N-23); what is set elsewhere is of the same one."""
    arguments = {f"BINDER_PLUGINS__{name}__ARGUMENTS": '{"fallbackMemoryMiB": "15360"}'}
    settings = load([OF_THE_OPERATOR], arguments)
    expected = PluginConfig(enabled=False, priority=50, arguments={"fallbackMemoryMiB": "15360"})
    assert settings.plugins == {"hamicore": expected}
    assert settings.ignored == ()


def test_both_places_of_the_environment_may_name_the_limit_differently() -> None:
    whole = {
        "BINDER_PLUGINS": '{"gpumemorylimit":{"enabled":true}}',
        "BINDER_PLUGINS__HAMICORE__PRIORITY": "7",
    }
    assert load([], whole).plugins == {"gpumemorylimit": PluginConfig(enabled=True, priority=7)}


def test_two_names_in_one_place_stay_two() -> None:
    both = '{"gpumemorylimit":{"enabled":true},"hamicore":{"enabled":false}}'
    for words, variables in ((["--plugins", both], {}), ([], {"BINDER_PLUGINS": both})):
        assert set(load(words, variables).plugins) == {"gpumemorylimit", "hamicore"}


@pytest.mark.parametrize(
    "variables",
    [
        {"BINDER_PLUGINS__GPUMEMORYLIMIT__ENABLED": "true"},
        {"BINDER_PLUGINS__GPUMEMORYLIMIT": '{"Enabled": true}'},
        {"BINDER_PLUGINS": '{"gpumemorylimit": {"enabled": true}}'},
    ],
)
def test_two_names_stay_two_where_one_is_on_and_the_other_off(variables: dict[str, str]) -> None:
    """The flag would win, and a limit that is on in the environment would be off."""
    assert set(load([OF_THE_OPERATOR], variables).plugins) == {"gpumemorylimit", "hamicore"}
    on = OF_THE_OPERATOR.replace("false", "true")
    assert set(load([on], variables).plugins) == {"hamicore"}


def test_what_gives_way_to_a_flag_is_told() -> None:
    """Else it would be left out without a word."""
    variables = {"BINDER_PLUGINS__HAMICORE__ENABLED": "true", "BINDER_QPS": "7", "BINDER_BURST": "9"}
    settings = load([OF_THE_OPERATOR, "--qps=20", "--burst=9"], variables)
    assert (settings.plugins["hamicore"].enabled, settings.qps) == (False, 20)
    assert settings.ignored == (
        "BINDER_PLUGINS__HAMICORE__ENABLED: hamicore.enabled 'true' gives way to false of --plugins",
        "BINDER_QPS: '7' gives way to '20' of --qps",
    )


@pytest.mark.parametrize(
    ("words", "on"), [([], False), (["--fips-only"], True), (["--fips-only=true"], True)]
)
def test_the_operators_flag_for_fips(words: list[str], on: bool) -> None:
    """N-14, N-22."""
    assert load(words, {}).fips_only is on


def test_a_flag_without_its_value_does_not_swallow_the_next() -> None:
    assert problems(["--kubeconfig", "--qps=abc"]) == [
        "--kubeconfig needs a value",
        "--qps: 'abc' must be a number above 0, or -1 for no limit",
    ]


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("BINDER_QPS", "abc", "BINDER_QPS: 'abc' must be a number above 0, or -1 for no limit"),
        ("BINDER_QSP", "1", "BINDER_QSP is no known variable; did you mean BINDER_QPS?"),
        ("BINDER_QPS__X", "1", "BINDER_QPS__X is no known variable; did you mean BINDER_QPS?"),
        ("BINDER_HELP", "true", "BINDER_HELP is no known variable"),
        (
            "BINDER_PLUGIN__GPUMEMORYLIMIT__ENABLED",
            "true",
            "BINDER_PLUGIN__GPUMEMORYLIMIT__ENABLED is no known variable; did you mean BINDER_PLUGINS?",
        ),
        (
            "BINDER_PLUGINS__GPUMEMORYLIMIT__ENABLD",
            "true",
            "BINDER_PLUGINS__GPUMEMORYLIMIT__ENABLD: gpumemorylimit.enabld is no known key; known are",
        ),
        ("BINDER_PLUGINS__A__PRIORITY", "x", "BINDER_PLUGINS__A__PRIORITY: a.priority 'x' must be a"),
        (
            "BINDER_PLUGINS__A__ARGUMENTS",
            "{",
            "BINDER_PLUGINS__A__ARGUMENTS: a.arguments: '{' must be a JSON",
        ),
        (
            "BINDER_PLUGINS__A__ARGUMENTS__B",
            "true",
            "BINDER_PLUGINS__A__ARGUMENTS__B: set all arguments as one JSON object in BINDER_PLUGINS",
        ),
        ("BINDER_PLUGINS", "{", "BINDER_PLUGINS: '{' must be a JSON object; it is no JSON"),
    ],
)
def test_a_bad_variable_is_named(variable: str, value: str, problem: str) -> None:
    found = problems([], {variable: value})
    assert len(found) == 1
    assert found[0].startswith(problem)


def test_a_bad_value_that_a_flag_overrides_does_no_harm() -> None:
    assert load(["--qps=5"], {"BINDER_QPS": "abc"}).qps == 5


def test_all_problems_are_told_together() -> None:
    found = problems(
        ["--log-qsp=1", "--burst=0", "--rate-limiter-max-delay=5", "--plugins={"],
        {
            "BINDER_RATE_LIMITER_BASE_DELAY": "10",
            "BINDER_LOG_LEVEL": "loud",
            "BINDER_X": "",
            "BINDER_QPS": "x",
        },
    )
    assert [line.split(" ")[0] for line in found] == [
        "--log-qsp",
        "BINDER_X",
        "--plugins:",
        "BINDER_QPS:",
        "--burst:",
        "--rate-limiter-max-delay:",
        "BINDER_LOG_LEVEL:",
    ]


def test_the_settings_in_effect_are_yaml_as_typed() -> None:
    words = '--plugins {"gpusharing":{"failurePolicy":"Ignore"}} --metrics-bind-address=[::1]:80'
    words += ' --resource-reservation-pod-resources {"limits":{"cpu":"1"}} --zap-devel=false --qps=0.5'
    settings = load(words.split(), {})
    shown = yaml.safe_load(describe(settings))
    assert shown.keys() == {row.flag[2:] for row in rows() if row.env}
    assert shown["plugins"] == {"gpusharing": {"failurePolicy": "Ignore"}}
    assert shown["metrics-bind-address"] == "[::1]:80"
    assert (shown["qps"], shown["burst"], shown["leader-elect"]) == (0.5, 300, False)
    assert (shown["log-format"], shown["kubeconfig"]) == ("json", "")
    assert shown["resource-reservation-pod-resources"] == {"limits": {"cpu": "1"}}


def test_what_is_shown_can_be_given_again() -> None:
    settings = load(
        ["--qps=7", "--plugins", '{"a":{"priority":5}}', "--leader-elect"], {"BINDER_LOG_LEVEL": "debug"}
    )
    argv = []
    for name, value in yaml.safe_load(describe(settings)).items():
        text = json.dumps(value) if isinstance(value, dict) else str(value)
        argv.append(f"--{name}={text}")
    assert load(argv, {}) == settings
