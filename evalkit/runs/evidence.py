"""The evidence of one model: what was measured, sample by sample and turn by turn."""

from dataclasses import dataclass

from evalkit.runs.records import SampleRecord, TurnRecord


@dataclass(frozen=True)
class Evidence:
    """Every record of one model in one run, samples sorted by (kind, id), turns by (dialogue, trial, turn)."""

    samples: tuple[SampleRecord, ...] = ()
    turns: tuple[TurnRecord, ...] = ()
