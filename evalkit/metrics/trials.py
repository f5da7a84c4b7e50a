"""Turn records grouped into trials: passed, failed or missing. Every dialogue metric asks here."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from evalkit.errors import InputError
from evalkit.metrics.context import DialogueSetup
from evalkit.runs.records import TurnRecord

Outcome = Literal["passed", "failed", "missing"]


@dataclass(frozen=True)
class Trial:
    """One trial of one dialogue.

    Attributes:
        dialogue_id, trial: identity.
        turns: its records in turn order.
        outcome: failed as soon as the model failed a turn or an expectation didn't hold; else missing if a
            turn was lost around the model or has no record; else passed.
    """

    dialogue_id: str
    trial: int
    turns: tuple[TurnRecord, ...]
    outcome: Outcome


@dataclass(frozen=True)
class TrialSet:
    """The trials of the dialogues in question, copies already set aside.

    Attributes:
        dialogue_ids: planned dialogues, sorted.
        by_dialogue: recorded trials of each planned dialogue (none where nothing was recorded).
        planned: different trials planned of each dialogue, 1 where they are copies; trial t is a copy of trial t modulo
            this number.
        copies: dialogues whose trials are copies.
    """

    dialogue_ids: tuple[str, ...]
    by_dialogue: dict[str, tuple[Trial, ...]]
    planned: dict[str, int]
    copies: frozenset[str]

    def independent(self) -> list[Trial]:
        """Trials that carry information of their own: of copies the first that isn't missing."""
        return [
            next((trial for trial in copies if trial.outcome != "missing"), copies[0])
            for key in self.dialogue_ids
            for copies in self._different(key)
        ]

    def _different(self, key: str) -> list[list[Trial]]:
        """The recorded trials of a dialogue, each with its copies."""
        found: dict[int, list[Trial]] = {}
        for trial in self.by_dialogue[key]:
            found.setdefault(trial.trial % self.planned[key], []).append(trial)
        return list(found.values())

    @property
    def coverage(self) -> float | None:
        """Share of the planned independent trials that gave a result; None where none was planned."""
        planned = sum(self.planned.values())
        found = sum(trial.outcome != "missing" for trial in self.independent())
        return found / planned if planned else None

    def counts(self) -> dict[str, tuple[int, int]]:
        """Passed trials and trials with a result, by dialogue; copies count as one, passed if all did."""
        found = {}
        for key in self.dialogue_ids:
            given = (
                [trial.outcome == "passed" for trial in copies if trial.outcome != "missing"]
                for copies in self._different(key)
            )
            passed = [all(outcomes) for outcomes in given if outcomes]
            found[key] = (sum(passed), len(passed))
        return found


def group_trials(turns: Sequence[TurnRecord], setup: DialogueSetup, slice: str | None = None) -> TrialSet:
    """Group records by dialogue and trial.

    Args:
        turns: in any order.
        setup: what was planned; records of other dialogues are left out.
        slice: only dialogues with this tag.

    Raises:
        InputError: two records of one turn.
    """
    wanted = sorted(key for key in setup.dialogue_ids if slice is None or slice in setup.tags.get(key, ()))
    by_dialogue: dict[str, tuple[Trial, ...]] = dict.fromkeys(wanted, ())
    ordered = sorted(turns, key=lambda turn: (turn.dialogue_id, turn.trial, turn.turn_index))
    for (key, number), records in groupby(ordered, key=lambda turn: (turn.dialogue_id, turn.trial)):
        trial = _trial(key, number, tuple(records))
        if key in by_dialogue:
            by_dialogue[key] = (*by_dialogue[key], trial)
    copies = frozenset(wanted) if not setup.varies else frozenset(setup.unvaried) & set(wanted)
    return TrialSet(
        dialogue_ids=tuple(wanted),
        by_dialogue=by_dialogue,
        planned={key: 1 if key in copies else setup.repeated.get(key, setup.trials) for key in wanted},
        copies=copies,
    )


def turn_failed(turn: TurnRecord) -> bool:
    """Whether the model failed the turn, or an expectation of it didn't hold."""
    return turn.status == "model_fault" or not all(item.passed for item in turn.expectations)


def _trial(dialogue_id: str, number: int, turns: tuple[TurnRecord, ...]) -> Trial:
    indices = [turn.turn_index for turn in turns]
    if len(set(indices)) != len(indices):
        twice = next(index for index in indices if indices.count(index) > 1)
        raise InputError(
            f"dialogue {dialogue_id!r}, trial {number}, turn {twice}: recorded twice; the evidence is damaged"
        )
    outcome: Outcome = "passed"
    if any(turn_failed(turn) for turn in turns):
        outcome = "failed"
    elif any(turn.status != "ok" for turn in turns) or indices != list(range(turns[0].dialogue_turns)):
        outcome = "missing"
    return Trial(dialogue_id, number, turns, outcome)
