"""How a Kubernetes minor is locked: what follows from the list of its versions and from its own go.mod."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from controlplane import build, locking
from controlplane.__main__ import parse

VERSIONS = "k8s.io/kubernetes v0.33.1 v1.3.3 v1.33.0 v1.33.9-rc.0 v1.33.9 v1.33.10 v1.34.0-alpha.1 v11.33.2\n"
UPSTREAM: dict[str, Any] = {
    "Go": "1.24.0",
    "Require": [
        {"Path": "k8s.io/api", "Version": "v0.0.0"},
        {"Path": "k8s.io/utils", "Version": "v0.0.0-20240711033017-18e509b52bc8"},
        {"Path": "sigs.k8s.io/json", "Version": "v0.1.0"},
    ],
    "Replace": [
        {"Old": {"Path": "k8s.io/api"}, "New": {"Path": "./staging/src/k8s.io/api"}},
        {
            "Old": {"Path": "k8s.io/sample-cli-plugin"},
            "New": {"Path": "./staging/src/k8s.io/sample-cli-plugin"},
        },
        {"Old": {"Path": "example.com/old"}, "New": {"Path": "example.com/new", "Version": "v1.0.0"}},
    ],
}
GO_MOD = """module kai-binder/controlplane

go 1.24.0

require k8s.io/kubernetes v1.33.13

replace (
\tk8s.io/api => k8s.io/api v0.33.13
\tk8s.io/sample-cli-plugin => k8s.io/sample-cli-plugin v0.33.13
)
"""
STUB = """#!/bin/sh
case "$*" in
  version) echo "go version go1.99.0 linux/amd64" ;;
  "list -m -versions "*) echo "k8s.io/kubernetes v1.33.0 v1.33.1" ;;
  "mod download -json "*) echo '{"GoMod": "upstream"}' ;;
  "mod edit -json upstream") echo '{"Go": "1.24.0"}' ;;
  "mod tidy")
    if grep -q "v1.33.1" go.mod; then
      echo "go: k8s.io/kms@v0.33.1: reading x/v0.33.1.zip: FAILURE" >&2
      exit 1
    fi
    echo "k8s.io/kubernetes v1.33.0 h1:x" > go.sum ;;
esac
"""


def test_the_newest_patch_comes_first_and_candidates_do_not_count() -> None:
    assert locking.patches(VERSIONS, "1.33") == ["v1.33.10", "v1.33.9", "v1.33.0"]


def test_a_minor_without_a_release_is_refused() -> None:
    with pytest.raises(build.BuildError, match=r"no release of Kubernetes 1\.34"):
        locking.patches(VERSIONS, "1.34")


@pytest.mark.parametrize("text", ["v1.33", "1.33.13", "1", "../1.33"])
def test_what_is_no_minor_is_refused(text: str) -> None:
    with pytest.raises(build.BuildError, match="is no minor of Kubernetes; write it as"):
        locking.patches(VERSIONS, text)


def test_staging_repositories_are_those_that_kubernetes_itself_names() -> None:
    assert locking.staging_modules(UPSTREAM) == ["k8s.io/api", "k8s.io/sample-cli-plugin"]


def test_the_module_replaces_each_by_the_version_of_the_release() -> None:
    assert locking.module_file(UPSTREAM, "v1.33.13") == GO_MOD


@pytest.mark.parametrize("minor", build.supported_kubernetes())
def test_each_lock_is_what_the_command_writes(minor: str) -> None:
    lock = build.LOCKS / f"kubernetes-{minor}"
    assert (lock / "commands.go").read_text() == locking.commands_file()
    patch = build.locked_version(lock, build.KUBERNETES_MODULE).removeprefix("v1.")
    replaced = [line.split() for line in (lock / "go.mod").read_text().splitlines() if " => " in line]
    assert len(replaced) > 20
    assert {(path, new, version) for path, _, new, version in replaced} == {
        (path, path, f"v0.{patch}") for path, *_ in replaced
    }


def with_stub(folder: Path, monkeypatch: pytest.MonkeyPatch, failure: str) -> Path:
    """Puts a Go on PATH that fails with v1.33.1, and a folder for locks in place of ours."""
    go = folder / "bin" / "go"
    go.parent.mkdir()
    go.write_text(STUB.replace("FAILURE", failure))
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    locks = folder / "locks"
    locks.mkdir()
    monkeypatch.setattr(locking, "LOCKS", locks)
    return locks


def test_a_release_that_the_proxy_has_in_part_only_gives_way_to_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = with_stub(tmp_path, monkeypatch, "403 Forbidden")
    lines: list[str] = []
    assert locking.lock_kubernetes("1.33", lines.append) == locks / "kubernetes-1.33"
    assert build.locked_version(locks / "kubernetes-1.33", build.KUBERNETES_MODULE) == "v1.33.0"
    assert "v1.33.1: the proxy does not serve all of it: k8s.io/kms@v0.33.1" in "\n".join(lines)
    assert sorted(path.name for path in (locks / "kubernetes-1.33").iterdir()) == [
        "commands.go",
        "go.mod",
        "go.sum",
    ]


def test_any_other_failure_ends_it_and_leaves_the_lock_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = with_stub(tmp_path, monkeypatch, "no route to host")
    with pytest.raises(build.BuildError, match="go mod tidy failed; is the Go module proxy reachable"):
        locking.lock_kubernetes("1.33", lambda _line: None)
    assert list(locks.iterdir()) == []


def test_locks_name_no_registry() -> None:
    for path in build.LOCKS.rglob("*.*"):
        if path.is_file():
            assert "://" not in path.read_text(), path


def test_the_command_takes_minors_to_lock_and_else_none() -> None:
    assert parse(["lock", "1.33", "1.34"]).minors == ["1.33", "1.34"]
    assert not parse(["--kubernetes", "1.31"]).minors
