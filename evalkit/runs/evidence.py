"""The evidence of one model: what was measured, sample by sample and turn by turn."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from evalkit.runs.records import SampleRecord, TurnRecord
from evalkit.runs.samples import Samples


@dataclass(frozen=True)
class Evidence:
    """Every record of one model in one run, samples sorted by (kind, id), turns by (dialogue, trial, turn).

    Attributes:
        samples, turns: the records.
        memo: what was computed of them once and doesn't depend on anything else (see `evalkit.metrics.text_sums`).
    """

    samples: Sequence[SampleRecord] = ()
    turns: tuple[TurnRecord, ...] = ()
    memo: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def columns(self) -> Samples:
        """The samples with their columns."""
        return Samples.of(self.samples)
