"""Prompts of another length are shown where they are, and the counts of sound ones keep out of the way."""

from dataclasses import replace
from pathlib import Path

from evalkit.report.dialogues import dialogue_section
from evalkit.report.source import load_source
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import ExpectationResult, TurnRecord
from tests.evalkit.fake_run import RULES, random_evidence, write_run


def counted(turn: TurnRecord) -> TurnRecord:
    told = 22 if turn.turn_index == 1 else 21
    check = ExpectationResult("prompt_tokens", 21, told, told == 21)
    return replace(turn, expectations=[check, *turn.expectations])


def test_only_prompts_of_another_length_are_shown(tmp_path: Path) -> None:
    made = random_evidence(1)
    evidence = Evidence(made.samples, tuple(map(counted, made.turns)))
    section = dialogue_section(load_source(write_run(tmp_path / "run", RULES, evidence, None)))
    assert section is not None and dict(section.counts).keys() == {"failed"}
    for dialogue in section.shown:
        for turn in dialogue.turns:
            assert turn.candidate is not None
            shown = [check.text for check in turn.candidate.checks if "prompt_tokens" in check.text]
            assert shown == (["prompt_tokens 21, got 22"] if turn.number == 2 else [])
