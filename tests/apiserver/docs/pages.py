"""The commands and outputs of README and docs/, as they stand there."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
WRITE = os.environ.get("PAGES_DOCS") == "write"
"""Whether outputs are to be written into the pages, instead of being compared."""
PLACEHOLDERS = {"<your-registry>": "registry.example.com/acme", "<your-secret>": "pull"}
TESTED_ELSEWHERE = (
    ("hack/demo", "tests/apiserver/admission/test_demo.py"),
    ("hack/test", "hack/test"),  # is what runs all of this
    ("CHAOS_", "tests/chaos/test_chaos.py"),
    ("docker ", "tests/unit/test_image_install.py"),  # carries out what the Dockerfile says
    ("pip install .", "tests/unit/test_image_install.py"),
    ("kai-binder explain", "tests/apiserver/explain/test_failures.py"),
    ("kai-binder gpus", "tests/apiserver/explain/test_gpus.py"),
    ("BINDER_PLUGINS__GPUMEMORYLIMIT__ENABLED=true BINDER", "tests/apiserver/docs/test_memory_limit_page.py"),
    ("python docs/examples/pull_secrets.py", "tests/apiserver/docs/test_controller_page.py"),
)
"""Beginnings of commands, and the test that runs them. All others are run by the tests of this folder."""

KUBECTL_RUN = {
    "README.md": "test_install_page.py",
    "docs/install.md": "test_install_page.py",
    "docs/migrate.md": "test_install_page.py",
    "docs/memory-limit.md": "test_memory_limit_page.py, test_install_page.py",
    "docs/controller.md": "test_controller_page.py",
    "docs/sharding.md": "../overlays/test_overlays.py",
    "docs/metrics.md": "../monitoring/test_installing.py",
}
"""Pages with commands of kubectl, and which tests of this folder run them."""


def page(name: str) -> str:
    """The text of a page, by its path from the root."""
    return (ROOT / name).read_text()


def section(name: str, title: str) -> str:
    """A part of a page, from its heading to the next of the same level."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page(name), re.DOTALL | re.MULTILINE)
    assert found is not None, f"{name} has no section {title}"
    return found[1]


def commands(text: str) -> list[str]:
    """The commands of a text, one a line; settings that are only set are none."""
    blocks = re.findall(r"^( *)```sh\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    lines = [line.strip() for _, block in blocks for line in block.splitlines()]
    told = [re.sub(r"\s+# .*", "", line) for line in lines if line and not line.startswith("#")]
    return [line for line in told if not re.fullmatch(r"BINDER_\w+=('[^']*'|\S*)", line)]


def output(name: str, title: str) -> str:
    """The output that a page shows under this title."""
    found = re.search(_block(title), page(name), re.DOTALL)
    assert found is not None, f"{name} shows nothing under {title}"
    return found[2]


def check_output(name: str, title: str, text: str) -> None:
    """Compares an output with that of a page."""
    if WRITE:
        path = ROOT / name
        path.write_text(
            re.sub(_block(title), lambda old: f"{old[1]}{text}{old[3]}", path.read_text(), flags=re.DOTALL)
        )
    assert output(name, title).split() == text.split()


def _block(title: str) -> str:
    return rf"(<!-- output: {re.escape(title)} -->\n```text\n)(.*?)(```\n)"
