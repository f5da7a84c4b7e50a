"""docs/chat.md works as written: its program runs, its commands and options exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.chat import _COMMANDS
from tests.support.fake_sandbox import Answer, FakeSandbox, serve

PAGE = Path(__file__).resolve().parent.parent / "docs" / "chat.md"


def test_the_program_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    with serve(FakeSandbox(lambda session, text: Answer(f"heard {text}", intent="greeting"))) as address:
        exec(compile(program, str(PAGE), "exec"), {"address": address})
    assert capsys.readouterr().out.splitlines() == [
        "fake",
        "heard my card is lost greeting 0",
        "heard thanksEND",
    ]


def test_commands_and_options_of_the_page_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert {row[0].split()[0] for row in _COMMANDS} <= set(re.findall(r"/+[a-zA-Z]+|Ctrl-C", text))
    shown = subprocess.run(
        [sys.executable, "-m", "sandbox", "chat", "--help"], capture_output=True, text=True, check=True
    )
    named = set(re.findall(r"`(--[a-z-]+)`", text.partition("## From a program")[0]))
    assert named and named <= set(re.findall(r"--[a-z-]+", shown.stdout))
