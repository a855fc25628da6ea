"""`kai-binder explain` as a user runs it, and its outputs as docs/ shows them."""

import io
import json
import os
import re
import shlex
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlplane import ControlPlane

from controller.explain.command import main

FOLDER = Path(__file__).parents[1] / "docs"
WHOLE = FOLDER / "explain.md"
"""Shows some outputs in full."""
SHORT = FOLDER / "troubleshooting.md"
"""Shows all of them, in short."""
WRITE = os.environ.get("EXPLAIN_DOCS") == "write"
"""Whether the outputs are to be written into the docs, instead of being compared."""


@dataclass(frozen=True, slots=True)
class Explained:
    """How a run has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.out))

    def command(self, beginning: str) -> list[str]:
        """The arguments of the one kubectl command that is advised and begins so."""
        texts = [step for advice in self.json["advice"] for step in advice["steps"]] + [self.json["then"]]
        found = {
            match[0].rstrip(" .")
            for text in texts
            for match in re.finditer(rf"{re.escape(beginning)}.*?(?=$|;|\. )", text)
        }
        (command,) = found
        return shlex.split(command)[1:]


def explain(kubeconfig: Path, *args: str, columns: int = 100) -> Explained:
    """Runs it in this process, with a kubeconfig as the only environment."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["explain", *args, f"--kubeconfig={kubeconfig}"], {"COLUMNS": str(columns)})
    return Explained(code, out.getvalue(), err.getvalue())


def carry_out(plane: ControlPlane, explained: Explained, beginning: str, *flags: str, **values: str) -> None:
    """Runs the command that is advised, with these flags added; `values` replace words in it."""
    words = [*explained.command(beginning), *flags]
    for old, new in values.items():
        words = [word.replace(old, new) for word in words]
    plane.kubectl(*words)


def normal(text: str, names: dict[str, str]) -> str:
    """An output with the names and times that the docs have."""
    for found, shown in sorted(names.items(), key=lambda item: -len(item[0])):
        text = text.replace(found, shown)
    text = re.sub(r"gpu-reservation-[0-9a-f]{16}", "gpu-reservation-617c4451a7a8a54c", text)
    text = re.sub(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "GPU-2f1c7a9e", text)
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "8f1d…", text)
    return re.sub(r"(?<=[ (])\d+ (s|min|h|d)(?= ago| ?,|$|\n)", "5 s", text)


def check(name: str, text: str) -> None:
    """Compares an output with the docs, but for its line ends, which depend on the length of names."""
    _check(SHORT, name, short(text))
    if f"<!-- output: {name} -->" in WHOLE.read_text():
        _check(WHOLE, name, text)


def short(text: str) -> str:
    """The answer, the steps that are not well, what a pod says of why it waits, and what to do."""
    kept: list[str] = []
    for paragraph in text.strip("\n").split("\n\n"):
        title = paragraph.partition("\n")[0]
        if not kept or title == "What to do":
            kept.append(paragraph)
        entries = re.findall(r"^  \S.*(?:\n   .*)*", paragraph, re.MULTILINE)
        if title == "Steps":
            unwell = [entry for entry in entries if not re.match(r"  ✓|  … .* Blocked,", entry)]
            inner = [entry for entry in unwell if " Bound: " not in entry]
            kept.append("\n".join([title, *(inner or unwell)]))
        elif title == "Pod":
            telling = [entry for entry in entries if "PodScheduled" in entry or "scheduling gates" in entry]
            kept += ["\n".join([title, *telling])] if telling else []
    return "\n\n".join(kept) + "\n"


def _check(page: Path, name: str, text: str) -> None:
    if WRITE:
        made = re.sub(
            _block(name), lambda found: f"{found[1]}{text}{found[3]}", page.read_text(), flags=re.DOTALL
        )
        page.write_text(made)
    found = re.search(_block(name), page.read_text(), re.DOTALL)
    assert found is not None, f"{page} shows nothing under {name}"
    assert flowing(text) == flowing(found[2])


def flowing(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


def _block(name: str) -> str:
    return rf"(<!-- output: {re.escape(name)} -->\n```text\n)(.*?)(```\n)"
