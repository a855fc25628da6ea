"""Writes the lock of a Kubernetes minor: the modules, with checksums, that its programs are built from.

Called by ``python -m controlplane lock``. Invariant: nothing here knows what one minor has and another has
not; the list of staging repositories comes from the module that is locked.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from controlplane.build import (
    KUBERNETES_MODULE,
    LOCKS,
    BuildError,
    Progress,
    ensure_go,
    go_environment,
    locked_version,
    parse_minor,
    say,
)

MODULE = "kai-binder/controlplane"
PROGRAMS = ("kube-apiserver", "kube-controller-manager")
# What Go prints where the proxy has the list of a module's versions, but not this one's files.
MISSING = re.compile(r"(\S+@\S+): reading .*: (?:403 Forbidden|404 Not Found|410 Gone)")


class MissingModuleError(BuildError):
    """The module proxy does not serve a module in the version that belongs to a release."""


def lock_kubernetes(minor: str, progress: Progress = say) -> Path:
    """Locks the newest patch of a minor that the Go module proxy serves whole.

    Args:
        minor: Such as ``1.33``.
        progress: Gets a line for each step.

    Returns:
        The folder of the lock, which is written anew.

    Raises:
        BuildError: There is no such minor, or Go cannot work out its modules.
    """
    go = str(ensure_go(progress))
    target = LOCKS / f"kubernetes-{minor}"
    with tempfile.TemporaryDirectory(prefix="kai-binder-lock-") as name:
        folder = Path(name)
        # The folder has no go.mod yet, so that this asks for nothing but the list.
        versions = _go(folder, go, "list", "-m", "-versions", KUBERNETES_MODULE)
        _lock_first_served(folder, go, patches(versions, minor), progress)
        target.mkdir(exist_ok=True)
        for part in ("go.mod", "go.sum", "commands.go"):
            shutil.copyfile(folder / part, target / part)
    return target


def _lock_first_served(folder: Path, go: str, versions: Sequence[str], progress: Progress) -> None:
    """Fills a folder with the lock of the first version of which the proxy has every module."""
    for version in versions:
        try:
            _lock(folder, go, version, progress)
        except MissingModuleError as error:
            progress(f"{KUBERNETES_MODULE} {version}: the proxy does not serve all of it: {error}")
        else:
            return
    raise BuildError(f"the Go module proxy serves none of {', '.join(versions)} whole")


def _lock(folder: Path, go: str, version: str, progress: Progress) -> None:
    for path in folder.iterdir():
        path.unlink()
    progress(f"{KUBERNETES_MODULE} {version}: working out what it is built from, a minute or two.")
    download = json.loads(_go(folder, go, "mod", "download", "-json", f"{KUBERNETES_MODULE}@{version}"))
    upstream = json.loads(_go(folder, go, "mod", "edit", "-json", download["GoMod"]))
    (folder / "go.mod").write_text(module_file(upstream, version))
    (folder / "commands.go").write_text(commands_file())
    _go(folder, go, "mod", "tidy")
    if locked_version(folder, KUBERNETES_MODULE) != version:
        raise BuildError(f"go mod tidy chose another version of {KUBERNETES_MODULE} than {version}")


def patches(versions: str, minor: str) -> list[str]:
    """Picks the releases of a minor from the output of ``go list -m -versions``, newest first.

    Raises:
        BuildError: There is none.
    """
    if not re.fullmatch(r"\d+\.\d+", minor):
        raise BuildError(f"{minor!r} is no minor of Kubernetes; write it as 1.33")
    found = re.findall(rf"(?<=\s)v{re.escape(minor)}\.(\d+)(?=\s|$)", versions)
    if not found:
        raise BuildError(f"the Go module proxy has no release of Kubernetes {minor}")
    return [f"v{minor}.{patch}" for patch in sorted(map(int, found), reverse=True)]


def staging_modules(upstream: Mapping[str, Any]) -> list[str]:
    """The modules that live in the repository of Kubernetes itself, sorted.

    There they are required as v0.0.0 and replaced by folders. Each is published by itself as well, and
    Kubernetes' own v1.33.13 goes with v0.33.13 of all of them.

    Args:
        upstream: Kubernetes' go.mod, as ``go mod edit -json`` prints it.
    """
    replaced = {
        item["Old"]["Path"]
        for item in upstream.get("Replace") or ()
        if item["New"]["Path"].startswith("./staging/")
    }
    required = {item["Path"] for item in upstream.get("Require") or () if item["Version"] == "v0.0.0"}
    return sorted(replaced | required)


def module_file(upstream: Mapping[str, Any], version: str) -> str:
    """The go.mod from which ``go mod tidy`` works out the rest.

    Args:
        upstream: Kubernetes' own go.mod, as ``go mod edit -json`` prints it.
        version: Of Kubernetes, such as ``v1.33.13``.
    """
    _, minor = parse_minor(version)
    staging_version = f"v0.{minor}.{version.rpartition('.')[2]}"
    lines = [f"module {MODULE}", "", f"go {upstream['Go']}", ""]
    lines += [f"require {KUBERNETES_MODULE} {version}", "", "replace ("]
    lines += [f"\t{path} => {path} {staging_version}" for path in staging_modules(upstream)]
    return "\n".join([*lines, ")", ""])


def commands_file() -> str:
    """A Go file that is never compiled: it makes the commands count as needed."""
    imports = "\n".join(f'\t_ "{KUBERNETES_MODULE}/cmd/{program}"' for program in PROGRAMS)
    return (
        "//go:build commands\n\n"
        "// Package commands keeps the two commands in the module graph, so that go.sum locks all they are "
        "built from.\n"
        f"package commands\n\nimport (\n{imports}\n)\n"
    )


def _go(folder: Path, go: str, *arguments: str) -> str:
    environment = {**go_environment(), "GOFLAGS": "-mod=mod"}
    command: Sequence[str] = [go, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        missing = {match[1] for match in MISSING.finditer(done.stderr)}
        if missing:
            raise MissingModuleError(", ".join(sorted(missing)))
        raise BuildError(f"go {' '.join(arguments)} failed; is the Go module proxy reachable?\n{done.stderr}")
    return done.stdout
