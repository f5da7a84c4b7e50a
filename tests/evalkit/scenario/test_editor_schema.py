"""`evalkit schema dialogue`: editors accept what the reader accepts, and mark what it refuses."""

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from click.testing import CliRunner

from evalkit.cli import cli
from tests.support.dialogues import RECALL

PROJECT = Path(__file__).resolve().parents[3]


def schema() -> jsonschema.Draft202012Validator:
    shown = CliRunner().invoke(cli, ["schema", "dialogue"])
    assert shown.exit_code == 0
    content = json.loads(shown.output)
    jsonschema.Draft202012Validator.check_schema(content)
    return jsonschema.Draft202012Validator(content)


def test_shipped_files_are_valid() -> None:
    files = sorted((PROJECT / "scenarios").rglob("dialogues/**/*.yaml"))
    assert files
    checker = schema()
    for file in files:
        checker.validate(yaml.safe_load(file.read_text(encoding="utf-8")))


def test_the_page_and_its_user_are_valid() -> None:
    blocks = (PROJECT / "docs" / "dialogues.md").read_text(encoding="utf-8").split("```yaml\n")[1:]
    talk, user = (block.partition("```")[0] for block in blocks[:2])
    schema().validate(yaml.safe_load(talk + user))


@pytest.mark.parametrize(
    "change", [{"persona_": "x"}, {"locale": "fr"}, {"turns": []}, {"facts": {"a b": 1}}, {"id": "a/b"}]
)
def test_mistakes_are_marked(change: dict[str, Any]) -> None:
    checker = schema()
    checker.validate(RECALL)
    assert not checker.is_valid({**copy.deepcopy(RECALL), **change})
