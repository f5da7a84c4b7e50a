"""Regular expressions of dialogue files can't hold up a run."""

from pathlib import Path

import pytest
import yaml

from evalkit.errors import InputError
from evalkit.scenario import patterns
from evalkit.scenario.dialogue_files import read_dialogue_file
from evalkit.scenario.patterns import Pattern, SlowPatternError
from tests.support.dialogues import RECALL

SLOW = r"(a|aa)+$"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "SEARCH_TIMEOUT_S", 0.2)


def test_a_search_ends_with_one_line() -> None:
    with pytest.raises(SlowPatternError, match=r"took more than 0\.2 s on a text of 61 characters"):
        Pattern(SLOW).find("a" * 60 + "!")


def test_a_slow_expression_is_refused_at_load_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    turns = [{"user": "hi {name}", "gold": "hello", "expect": {"matches": [SLOW]}}]
    path.write_text(yaml.safe_dump({**RECALL, "turns": turns}))
    with pytest.raises(InputError, match=r"d.yaml:\d+: turns.0.expect.matches.0: the regular expression"):
        read_dialogue_file(path)


def test_a_ledger_expression_has_one_group(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(yaml.safe_dump({**RECALL, "ledger": {"amount": r"\d+ euros"}}))
    with pytest.raises(InputError, match=r"ledger.amount: 0 groups; exactly one is needed"):
        read_dialogue_file(path)


def test_spans_are_found_under_the_limit_too() -> None:
    assert Pattern(r"CU-\d+").spans("CU-1, CU-22") == [(0, 4), (6, 11)]
    with pytest.raises(SlowPatternError, match=r"took more than 0\.2 s"):
        Pattern(SLOW).spans("a" * 60 + "!")


@pytest.mark.parametrize("value", [".nan", ".inf"])
def test_a_fact_is_a_number_that_can_be_said(tmp_path: Path, value: str) -> None:
    path = tmp_path / "d.yaml"
    text = yaml.safe_dump(RECALL).replace("amount: 250", f"amount: {value}")
    path.write_text(text)
    with pytest.raises(InputError, match=r"d.yaml:\d+: facts.amount"):
        read_dialogue_file(path)
