"""The commands that docs/promotion.md and docs/ci.md show are commands that there are."""

import re
import shlex
from pathlib import Path

import click
import pytest

from evalkit.cli import cli

DOCS = Path(__file__).resolve().parent.parent / "docs"


def shown() -> list[tuple[str, list[str]]]:
    """Page and words of each command line in a fence."""
    found = []
    for name in ("promotion.md", "ci.md"):
        for block in re.findall(r"^```\w*\n(.*?)^```", (DOCS / name).read_text(), re.MULTILINE | re.DOTALL):
            for line in block.splitlines():
                if line.startswith("evalkit "):
                    found.append((name, shlex.split(line, comments=True)[1:]))
    return found


@pytest.mark.parametrize(("page", "words"), shown())
def test_a_shown_command_is_understood(page: str, words: list[str]) -> None:
    command: click.Command = cli
    while isinstance(command, click.Group):
        command, words = command.commands[words[0]], words[1:]
    command.make_context(command.name, list(words))


def test_every_recipe_is_named_on_its_page() -> None:
    page = (DOCS / "ci.md").read_text()
    assert {path.name for path in (DOCS / "ci").iterdir()} == set(re.findall(r"\(ci/([\w.-]+)\)", page))
