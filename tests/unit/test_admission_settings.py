"""The settings of the webhook: one plugins setting for both, one ConfigMap for both, and what is its own."""

import json
from collections.abc import Sequence

import pytest
import yaml

from controller.__main__ import main
from controller.planning import plan
from controller.setting_base import GROUPS, CommonSettings
from controller.setting_texts import describe, help_text, rows
from controller.settings import VERBS, AdmissionSettings, Settings, SettingsError, load, load_as
from controller.webhook import rules_of

OWN = {
    "--webhook-bind-address": ":9443",
    "--binder-service-account-username": "system:serviceaccount:kai-scheduler:binder",
    "--block-nvidia-visible-devices": "false",
    "--gpu-fraction-runtime-class-name": "",
    "--binder-metrics-url": "http://binder.kai-scheduler.svc:8080/metrics",
    "--tls-cert-file": "/etc/kai-binder/tls/tls.crt",
    "--tls-private-key-file": "/etc/kai-binder/tls/tls.key",
    "--self-signed-certificate": "false",
    "--webhook-namespace": "kai-scheduler",
    "--webhook-service-name": "kai-binder-admission",
    "--webhook-secret-name": "kai-binder-admission-certificate",
    "--webhook-configuration-name": "kai-binder-admission",
}
LIMITED = {"BINDER_PLUGINS__GPUMEMORYLIMIT__ENABLED": "true"}


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in {row.env for verb in VERBS for row in rows(verb) if row.env}:
        monkeypatch.delenv(row, raising=False)


def webhook(argv: Sequence[str] = (), **environ: str) -> AdmissionSettings:
    return load_as(AdmissionSettings, argv, environ)


def problems(argv: Sequence[str] = (), **environ: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        webhook(argv, **environ)
    return caught.value.problems


def test_what_it_has_of_its_own() -> None:
    shared = {row.flag for row in rows(Settings)} & {row.flag for row in rows(AdmissionSettings)}
    assert {row.flag: row.default for row in rows(AdmissionSettings) if row.flag not in shared} == OWN
    assert {"--plugins", "--scheduler-name", "--kubeconfig", "--log-level", "--print-config"} <= shared


@pytest.mark.parametrize("verb", VERBS)
def test_settings_are_listed_group_by_group(verb: type[CommonSettings]) -> None:
    groups = [row.group for row in rows(verb)]
    assert groups == sorted(groups, key=GROUPS.index)
    assert set(groups) <= set(GROUPS)


@pytest.mark.parametrize("verb", VERBS)
def test_help_names_the_verbs_and_the_settings_of_this_one(verb: type[CommonSettings]) -> None:
    text = help_text(verb)
    assert text.startswith(f"kai-binder {verb.verb}: {verb.purpose}.\n")
    assert all(f"\n  kai-binder {name} " in text for name in ("run", "admission", "agent"))
    for row in rows(verb):
        assert f"\n  {row.flag}" in text
        assert row.env in text


def test_each_takes_the_variables_of_the_other_and_leaves_them_alone() -> None:
    environ = {"BINDER_QPS": "7", "BINDER_WEBHOOK_BIND_ADDRESS": ":9444", **LIMITED}
    assert webhook(**environ).webhook_bind_address == ":9444"
    assert load([], environ).qps == 7
    assert webhook(**environ).plugins == load([], environ).plugins != {}


def test_what_only_the_other_reads_is_not_judged() -> None:
    assert webhook(BINDER_QPS="fast") == webhook()
    assert load([], {"BINDER_WEBHOOK_BIND_ADDRESS": "nowhere"}) == load([], {})


def test_a_variable_that_nobody_knows_is_refused_by_both() -> None:
    name = "BINDER_WEBHOOK_BIND_ADRESS"
    told = [f"{name} is no known variable; did you mean BINDER_WEBHOOK_BIND_ADDRESS?"]
    assert problems(**{name: ":1"}) == told
    with pytest.raises(SettingsError) as caught:
        load([], {name: ":1"})
    assert caught.value.problems == told


def test_an_unknown_flag_of_the_webhook_is_a_typing_error() -> None:
    assert problems(["--block-nvidia-visible-device"]) == [
        "--block-nvidia-visible-device is no known flag; did you mean --block-nvidia-visible-devices?"
    ]
    assert problems(["--qps=3"]) == ["--qps is no known flag"]
    assert load(["--block-nvidia-visible-devices"], {}).ignored


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("webhook-bind-address", "0", "must be an address such as :9443, 127.0.0.1:9443 or [::1]:9443"),
        ("webhook-bind-address", ":8080", "must differ from --metrics-bind-address, which is :8080"),
        ("webhook-bind-address", ":8081", "must differ from --health-probe-bind-address, which is :8081"),
        ("tls-cert-file", "tls.crt", "must be the whole path of a file, from / on"),
        ("tls-private-key-file", "", "must be the whole path of a file, from / on"),
        ("binder-metrics-url", "binder:8080", "must be empty or a URL such as http://"),
        ("binder-metrics-url", "ftp://a", "must be empty or a URL such as http://"),
        ("binder-service-account-username", "a b", "must be empty or a user name such as"),
        ("gpu-fraction-runtime-class-name", "A", "must be empty or a Kubernetes name"),
        ("webhook-namespace", "a.b", "must be a namespace"),
        ("webhook-service-name", "", "must be a Kubernetes name"),
        ("self-signed-certificate", "maybe", "must be true or false"),
    ],
)
def test_a_bad_value_is_told_with_what_is_allowed(flag: str, value: str, words: str) -> None:
    (by_flag,) = problems([f"--{flag}={value}"])
    assert by_flag.startswith(f"--{flag}: {value!r} {words}")
    variable = "BINDER_" + flag.upper().replace("-", "_")
    (by_variable,) = problems(**{variable: value})
    assert by_variable.startswith(f"{variable}: {value!r} {words}")


def test_what_is_shown_can_be_given_again() -> None:
    settings = webhook(["--self-signed-certificate", "--binder-metrics-url=", "--log-format=json"], **LIMITED)
    argv = []
    for name, value in yaml.safe_load(describe(settings)).items():
        text = json.dumps(value) if isinstance(value, dict | bool) else str(value)
        argv.append(f"--{name}={text}")
    assert webhook(argv) == settings


def test_the_rules_follow_the_settings() -> None:
    rules = rules_of(webhook(), plan(webhook()))
    assert (rules.shares_by_maps, rules.limits_memory, rules.nri) == (True, False, False)
    assert rules.is_binder("system:serviceaccount:kai-scheduler:binder")

    variable = {"BINDER_PLUGINS__GPUMEMORYLIMIT__ARGUMENTS": '{"variable":"GPU_MEMORY_LIMIT"}'}
    nri = '--plugins={"gpusharing":{"arguments":{"cdiEnabled":"false","nriPluginEnabled":"true"}}}'
    flags = [nri, "--block-nvidia-visible-devices", "--gpu-fraction-runtime-class-name=nvidia"]
    settings = webhook(["--scheduler-name=other", *flags], **LIMITED, **variable)
    rules = rules_of(settings, plan(settings))
    assert (rules.scheduler_name, rules.runtime_class_name) == ("other", "nvidia")
    assert (rules.nri, rules.limits_memory, rules.limit_variable) == (True, True, "GPU_MEMORY_LIMIT")
    assert rules.block_visible_devices


def test_a_limit_without_sharing_is_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**LIMITED, "BINDER_PLUGINS__GPUSHARING__ENABLED": "false"}.items():
        monkeypatch.setenv(name, value)
    assert main(["admission", "--print-config", "--webhook-bind-address=:9444"]) == 1
    shown, told = capsys.readouterr()
    assert "webhook-bind-address: :9444\n" in shown
    names = [item["name"] for item in yaml.safe_load(shown)["plugin-order"]]
    assert names == ["volumebinding", "dynamicresources", "gpumemorylimit"]
    assert told.startswith("kai-binder: DependencyNotMet: gpumemorylimit needs gpusharing, which is disabled")


def test_good_settings_are_no_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["admission", "--print-config", '--plugins={"fromanewerkai":{}}']) == 0
    shown, told = capsys.readouterr()
    assert told == ""
    assert yaml.safe_load(shown)["ignored"] == ["--plugins: there is no plugin 'fromanewerkai'"]
