"""What the command says of itself: at once, the same as the settings say, and without importing them."""

import subprocess
import sys

import pytest
import readmegen

from controller import KAI_VERSIONS
from controller.command import main
from controller.setting_base import CommonSettings
from controller.setting_texts import help_text
from controller.settings import VERBS

HEAVY = ("pydantic", "pydantic_settings", "anyio", "asyncio", "aiohttp", "kr8s", "loguru")


def test_the_texts_are_those_of_the_settings() -> None:
    texts = readmegen.help_texts()
    assert {path.stem for path in texts} == {verb.verb for verb in VERBS}
    for path, text in texts.items():
        assert path.read_text() == text, "run hack/readme"


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_the_same_whatever_stands_beside_it(
    verb: type[CommonSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["--help"], ["-help"], ["-h"], ["--h"], ["--help=true"], ["--zap-devel", "--help"]):
        assert main(verb.verb, words, {}) == 0
        assert capsys.readouterr().out == help_text(verb)


@pytest.mark.parametrize("words", [["--version"], ["-version"], ["--version=true"]])
def test_the_version_names_the_kai_it_is_for(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main("run", words, {}) == 0
    told = capsys.readouterr().out
    assert told.startswith("kai-binder ")
    assert told.endswith(f" for KAI {', '.join(KAI_VERSIONS)}\n")


def test_false_is_no_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("run", ["--help=false", "--version=false", "--qps=many"], {}) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "words", ["--help", "--version", "run --help", "admission -h", "agent --help", "explain -h", "gpus -h"]
)
def test_nothing_is_imported_that_the_answer_does_not_need(words: str) -> None:
    code = (
        "import sys; from controller.__main__ import main\n"
        "try: main()\n"
        "finally: print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words.split()], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout
    assert {*HEAVY} & {*done.stderr.split()} == set()
