"""The pure parts of the tools: what is built, where it is kept, with which flags it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from controlplane import build
from controlplane.client import RequestError, parsed
from controlplane.flags import (
    Layout,
    apiserver_flags,
    claim_versions,
    claims_config,
    claims_gate,
    controller_manager_flags,
)
from controlplane.pki import Keys, write_keys
from controlplane.process import ControlPlaneError, Guard, Program, free_ports
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    keys = Keys(tmp_path / "ca", tmp_path / "crt", tmp_path / "key", tmp_path / "sa")
    return Layout(6443, 2379, 2380, tmp_path, keys)


def test_the_newest_minor_comes_first() -> None:
    assert build.supported_kubernetes() == ["1.36", "1.35", "1.34", "1.33", "1.32", "1.31"]


@pytest.mark.parametrize("minor", build.supported_kubernetes())
def test_every_lock_names_a_patch_of_its_minor(minor: str) -> None:
    etcd, server, manager = build.components(minor)
    assert server.version.startswith(f"v{minor}.")
    assert manager.version == server.version
    assert f"gitVersion={server.version} " in server.linker_flags
    assert etcd.version.startswith("v3.")


def test_minors_share_etcd_and_nothing_else() -> None:
    keys = [{part.key for part in build.components(minor)} for minor in ("1.36", "1.35")]
    assert {key.split("-v")[0] for key in keys[0] & keys[1]} == {"etcd"}


def test_an_unknown_minor_is_refused_with_the_known_ones() -> None:
    with pytest.raises(build.BuildError, match=r"'1\.2' has no lock here; choose from 1\.36, 1\.35"):
        build.components("1.2")


def test_a_changed_lock_gives_another_cache_folder(tmp_path: Path) -> None:
    part = build.Component("etcd", "module", tmp_path, "v1.0.0", "-s", "long")
    (tmp_path / "go.mod").write_text("require module v1.0.0\n")
    (tmp_path / "go.sum").write_text("one")
    before = part.key
    (tmp_path / "go.sum").write_text("two")
    assert part.key != before
    assert part.key.startswith("etcd-v1.0.0-")


@pytest.mark.parametrize("text", ["require a.b/c v1.2.3\n", "require (\n\ta.b/c v1.2.3\n)\n"])
def test_a_locked_version_is_found_in_both_forms(tmp_path: Path, text: str) -> None:
    (tmp_path / "go.mod").write_text(f"module a.b/c/d\n\n{text}\nreplace a.b/c => x v9.9.9\n")
    assert build.locked_version(tmp_path, "a.b/c") == "v1.2.3"


@pytest.mark.parametrize(
    ("version", "enough"),
    [
        ("go version go1.26.8 linux/amd64", True),
        ("go version go1.27rc1 linux/arm64", True),
        ("go version devel go1.28-3c1d2f Mon linux/amd64", True),
        ("go version go2.0 linux/amd64", True),
        ("go version go1.25.9 linux/amd64", False),
        ("go version go1.9 linux/amd64", False),
        ("gccgo (GCC) 13", False),
    ],
)
def test_go_is_judged_by_its_version(version: str, enough: bool) -> None:
    assert build.is_new_enough_go(version) is enough


def test_elapsed_time_reads_as_minutes_and_seconds() -> None:
    assert [build.format_elapsed(s) for s in (0.4, 61, 3599.9)] == ["0:00", "1:01", "59:59"]


def test_assets_of_another_minor_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("kube-apiserver", "Kubernetes v1.31.0"), ("etcd", "etcd Version: 3.5.1")):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho {text}\n")
        program.chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    lines: list[str] = []
    assert build.assets("1.36", lines.append) == {"etcd": tmp_path / "etcd"}
    assert "kube-apiserver is Kubernetes v1.31.0, not 1.36" in lines[0]


def test_no_kubelets_so_no_controller_that_waits_for_them(layout: Layout) -> None:
    flags = controller_manager_flags(layout, Path("admin"))
    assert "--controllers=*,-node-lifecycle-controller,-taint-eviction-controller" in flags


def test_optional_flags_of_the_api_server_appear_when_wanted(layout: Layout) -> None:
    plain = apiserver_flags(layout, {}, None)
    full = apiserver_flags(layout, {"resource.k8s.io/v1beta1": "true", "api/all": "false"}, Path("audit.log"))
    assert full[: len(plain)] == plain
    assert full[len(plain) :] == [
        f"--audit-policy-file={layout.audit_policy}",
        "--audit-log-path=audit.log",
        "--runtime-config=resource.k8s.io/v1beta1=true,api/all=false",
    ]


@pytest.mark.parametrize(
    ("minor", "best", "config"),
    [
        ("1.31", "v1alpha3", {"resource.k8s.io/v1alpha3": "true"}),
        ("1.32", "v1beta1", {"resource.k8s.io/v1beta1": "true"}),
        ("1.33", "v1beta2", {"resource.k8s.io/v1beta2": "true", "resource.k8s.io/v1beta1": "true"}),
        ("1.34", "v1", {}),
        ("1.36", "v1", {}),
    ],
)
def test_device_claims_are_switched_on_where_they_are_off(
    minor: str, best: str, config: dict[str, str]
) -> None:
    assert claim_versions(minor)[0] == best
    assert claims_config(minor) == config
    # Locked to on since 1.35: there a flag of old would be in the way.
    assert claims_gate(minor) == (["--feature-gates=DynamicResourceAllocation=true"] if config else [])


def test_an_error_carries_status_and_body() -> None:
    error = RequestError("GET", "/x", 404, parsed('{"kind": "Status", "message": "no x"}'))
    assert (str(error), error.status, error.body) == (
        "GET /x: 404: no x",
        404,
        {"kind": "Status", "message": "no x"},
    )
    assert RequestError("GET", "/x", 502, parsed("<html>")).body == "<html>"


def test_the_certificate_is_signed_by_the_authority_and_good_for_the_address(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "pki")
    authority = x509.load_pem_x509_certificate(keys.ca.read_bytes())
    certificate = x509.load_pem_x509_certificate(keys.certificate.read_bytes())
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "127.0.0.1" in [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    assert isinstance(certificate.public_key(), ec.EllipticCurvePublicKey)


def test_ports_are_different_and_below_those_of_outgoing_connections() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert max(ports) < 32768


def test_a_program_that_ends_early_is_reported_with_its_last_words(tmp_path: Path) -> None:
    guard = Guard()
    program = Program("etcd", [sys.executable, "-c", "print('no disk'); exit(3)"], tmp_path / "log", guard)
    program.start()
    with pytest.raises(ControlPlaneError, match="etcd ended with status 3:\nno disk"):
        program.wait_until(lambda: False, timeout_s=30)
    guard.close()


def test_programs_die_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    script = (
        "import pathlib, sys, time\n"
        "from controlplane.process import Guard, Program\n"
        "program = Program('sleep', ['sleep', '60'], pathlib.Path(sys.argv[1]), Guard())\n"
        "program.start()\n"
        "print(program.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    hack = Path(build.__file__).parent.parent
    command = [sys.executable, "-c", script, str(tmp_path / "log")]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(hack)})
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_running(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(child)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")  # in a container nobody may collect it, then it stays as a zombie
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
