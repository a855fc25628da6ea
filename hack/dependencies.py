"""What the lock of the run-time dependencies says, and the licences that the installed packages carry.

Called by ``sbomgen`` and ``auditing``. Invariant: a licence is only told of the very version that is locked.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import bootstrap
from packaging.markers import Marker
from packaging.utils import canonicalize_name

ROOT = bootstrap.ROOT
LOCK = ROOT / "requirements.lock"
PROJECT = "kai-binder"

_ENTRY = re.compile(r"^([\w.-]+)==([^ ;\\]+)(?: ; (.+?))?(?: \\)?$")
_BY_TEXT: Mapping[str, str] = MappingProxyType(
    {
        "Apache 2.0": "Apache-2.0",
        "Apache-2.0": "Apache-2.0",
        "BSD": "BSD",  # which of them is not said
        "BSD-3-Clause": "BSD-3-Clause",
        "MIT": "MIT",
        "MPL-2.0": "MPL-2.0",
        "PSF-2.0": "PSF-2.0",
    }
)
"""The field License of older metadata, which is free text."""
_BY_CLASSIFIER: Mapping[str, str] = MappingProxyType(
    {
        "License :: OSI Approved :: MIT License": "MIT",
        "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    }
)


class LicenceError(Exception):
    """The licence of a package is not known; the message says which package, and why."""


@dataclass(frozen=True, slots=True)
class Locked:
    """One entry of the lock.

    Attributes:
        name: In the form that package indexes compare by.
        version: The only one that may be installed.
        marker: Where it is needed; None: everywhere.
        needed_by: The names of who needs it.
    """

    name: str
    version: str
    marker: Marker | None
    needed_by: tuple[str, ...]

    def is_needed(self, environment: Mapping[str, str] | None = None) -> bool:
        """Whether it is needed: in this environment, or, without one, by the Python that asks."""
        return self.marker is None or self.marker.evaluate(dict(environment) if environment else None)


def locked(text: str) -> list[Locked]:
    """The entries of a lock, in its order."""
    found: list[Locked] = []
    for line in text.splitlines():
        entry = _ENTRY.match(line)
        if entry is not None:
            name, version, marker = entry.groups()
            found.append(Locked(canonicalize_name(name), version, Marker(marker) if marker else None, ()))
            continue
        # "# via one", or "# via" and a line for each
        comment = re.match(r"^    # (?:via)? *([\w.-]*)", line)
        if comment is not None and comment[1] and found:
            last = found[-1]
            needed_by = (*last.needed_by, canonicalize_name(comment[1]))
            found[-1] = Locked(last.name, last.version, last.marker, needed_by)
    return found


def licence_of(package: Locked) -> str:
    """The licence of an installed package, as an SPDX expression; "BSD" where the package says no more.

    Raises:
        LicenceError: Another version is installed, or none, or what it says is in no table here.
    """
    try:
        told = importlib.metadata.metadata(package.name)
    except importlib.metadata.PackageNotFoundError:
        raise LicenceError(f"{package.name} is not installed") from None
    if told["Version"] != package.version:
        raise LicenceError(f"{package.name} is installed as {told['Version']}, locked as {package.version}")
    # Asked for like this, since a field that is not there raises in newer Pythons.
    expressions, texts = told.get_all("License-Expression", []), told.get_all("License", [""])
    if expressions:
        return str(expressions[0])
    text = str(texts[0]).strip()
    classifiers = [name for name in told.get_all("Classifier", []) if name.startswith("License ::")]
    known = [_BY_TEXT[text]] if text in _BY_TEXT else [_BY_CLASSIFIER.get(name) for name in classifiers]
    if len(known) != 1 or known[0] is None:
        shown = text.partition("\n")[0][:60] or ", ".join(classifiers) or "nothing"
        raise LicenceError(f"{package.name} {package.version} says {shown!r} of its licence")
    return known[0]
