"""Audits the locked run-time dependencies: their licences, and known vulnerabilities.

hack/audit    exit 1 if a licence is not allowed, or a vulnerability is known

Licences are read from the installed packages, without the network. Vulnerabilities are asked of the package
index by pip-audit. What cannot be asked is said to be not checked, and is no failure: not every index has an
answer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dependencies import LOCK, LicenceError, Locked, licence_of, locked
from license_expression import get_spdx_licensing  # type: ignore[import-untyped]

ALLOWED = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "BSD",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "ISC",
        "MIT",
        "MIT-0",
        # Only of its own files, which the image has as they were published.
        "MPL-2.0",
        "PSF-2.0",
    }
)
"""What may be passed on in an image under Apache-2.0. "BSD": the package does not say which."""
_TIMEOUT_S = 120
_MISUSED = 2


class Verdict(NamedTuple):
    """What was found.

    Attributes:
        problems: A line for each reason to fail.
        notes: What else a reader should know, above all what was not checked.
    """

    problems: list[str]
    notes: list[str]


def main(argv: Sequence[str] | None = None) -> int:
    """Audits, prints what was found and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="hack/audit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args(argv)
    packages = [package for package in locked(LOCK.read_text()) if package.is_needed()]
    licences, vulnerabilities = judge_licences(packages), ask(LOCK, len(packages))
    for line in (*licences.notes, *vulnerabilities.notes):
        print(line)
    problems = [*licences.problems, *vulnerabilities.problems]
    for line in problems:
        print(line, file=sys.stderr)
    return int(bool(problems))


def judge_licences(packages: Iterable[Locked]) -> Verdict:
    """Whether each package may be passed on."""
    problems, count = [], 0
    for package in packages:
        count += 1
        try:
            licence = licence_of(package)
        except LicenceError as error:
            problems.append(f"licences: {error}; allowed are {', '.join(sorted(ALLOWED))}")
            continue
        if not is_allowed(licence):
            allowed = ", ".join(sorted(ALLOWED))
            problems.append(f"licences: {package.name} {package.version} is {licence}; allowed are {allowed}")
    return Verdict(problems, [f"licences: {count - len(problems)} of {count} packages are allowed"])


def is_allowed(licence: str) -> bool:
    """Whether the licences of an SPDX expression are allowed: of AND all of them, of OR one is enough."""
    try:
        expression = get_spdx_licensing().parse(licence)
    except Exception:  # noqa: BLE001 -- whatever is wrong with it, it is no licence that we know
        return False
    return _holds(expression)


def _holds(expression: Any) -> bool:  # noqa: ANN401 -- the library has no types
    operator = getattr(expression, "operator", None)
    if operator is None:
        return str(expression) in ALLOWED
    parts = [_holds(part) for part in expression.args]
    return all(parts) if operator.strip() == "AND" else any(parts)


def ask(lock: Path, count: int) -> Verdict:
    """Asks the package index for known vulnerabilities of what a lock has.

    Args:
        lock: The file.
        count: How many packages there are to ask about.
    """
    options = ["--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json", "--timeout=10"]
    command = [str(Path(sys.prefix) / "bin" / "pip-audit"), *options, "--requirement", str(lock)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return _not_checked(f"no answer within {_TIMEOUT_S} s")
    if done.returncode == _MISUSED:
        return Verdict([f"vulnerabilities: pip-audit does not take {options}: {done.stderr.strip()}"], [])
    try:
        report = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip() or "pip-audit says nothing").splitlines()[-1]
        return _not_checked(last[:300])
    return judge_report(report, count)


def judge_report(report: dict[str, Any], count: int) -> Verdict:
    """What a report of pip-audit says, of so many packages."""
    problems, checked, skipped = [], 0, []
    for entry in report["dependencies"]:
        if "skip_reason" in entry:
            skipped.append(str(entry["skip_reason"]))
            continue
        checked += 1
        for found in entry["vulns"]:
            aliases = f" ({', '.join(found['aliases'])})" if found.get("aliases") else ""
            mended = ", ".join(found["fix_versions"]) or "no version yet"
            problems.append(
                f"vulnerabilities: {entry['name']} {entry['version']} has {found['id']}{aliases}, mended in "
                f"{mended}; run hack/lock --upgrade-package {entry['name']}"
            )
    notes = [f"vulnerabilities: {checked} of {count} packages checked"]
    if checked < count:
        why = f": {skipped[0]}" if skipped else ""
        notes += _not_checked(f"{count - checked} of {count} packages{why}").notes
    return Verdict(problems, notes)


def _not_checked(why: str) -> Verdict:
    return Verdict([], [f"vulnerabilities: NOT CHECKED, {why}"])
