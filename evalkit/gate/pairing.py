"""Which samples of candidate and baseline belong together: equal texts, decisions or dialogue trials.

Both models are then measured on exactly these, so that a difference is one of the models, not of the samples.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from evalkit.errors import InputError
from evalkit.gate.comparison import PairCounts
from evalkit.gate.sample_pairs import SamplePairs, pair_samples
from evalkit.metrics.context import DialogueSetup
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import TurnRecord
from evalkit.runs.samples import RowArray

KINDS = ("text", "risk", "turn")

# (dialogue id, trial)
Trial = tuple[str, int]


class _Pairs(Protocol):
    """Paired units of one kind: how many, and how many of them and of all are in a slice."""

    @property
    def counts(self) -> PairCounts: ...

    def in_slice(self, tag: str) -> tuple[int, int]:
        """Planned and paired units that have a tag."""
        ...


@dataclass(frozen=True)
class TrialPairs:
    """Paired trials of dialogues.

    Attributes:
        counts: of trials.
        paired, planned: trials held by both, and known to either.
        tags: of each planned trial, of either side.
    """

    counts: PairCounts
    paired: frozenset[Trial]
    planned: frozenset[Trial]
    tags: Mapping[Trial, frozenset[str]]

    def in_slice(self, tag: str) -> tuple[int, int]:
        """See `SamplePairs.in_slice`."""
        planned, paired = (
            sum(tag in self.tags[trial] for trial in trials) for trials in (self.planned, self.paired)
        )
        return planned, paired


@dataclass(frozen=True)
class Pairing:
    """Both models' evidence cut down to the paired samples.

    Attributes:
        candidate, baseline: the paired records of each model.
        kinds: the pairs of each kind of evidence.
    """

    candidate: Evidence
    baseline: Evidence
    kinds: Mapping[str, _Pairs]
    _counted: dict[tuple[str, str], tuple[int, int]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def counts(self, kind: str) -> PairCounts:
        """How many units of `kind` are paired."""
        pairs = self.kinds.get(kind)
        return PairCounts(0, 0, 0, 0) if pairs is None else pairs.counts

    def coverage(self, kinds: Iterable[str], slice: str | None) -> float | None:
        """Paired units over planned ones of some kinds, within a slice; None where nothing was planned."""
        planned, paired = 0, 0
        for kind in set(kinds) & set(self.kinds):
            found = self._in_slice(kind, slice)
            planned, paired = planned + found[0], paired + found[1]
        return paired / planned if planned else None

    def _in_slice(self, kind: str, slice: str | None) -> tuple[int, int]:
        if slice is None:
            return self.kinds[kind].counts.planned, self.kinds[kind].counts.paired
        if (kind, slice) not in self._counted:
            self._counted[kind, slice] = self.kinds[kind].in_slice(slice)
        return self._counted[kind, slice]


def pair(candidate: Evidence, baseline: Evidence, dialogues: DialogueSetup | None = None) -> Pairing:
    """Pair by sample id: equal content, usable in both.

    Args:
        candidate, baseline: everything that was recorded.
        dialogues: what was planned, so that a dialogue that neither model finished lowers the coverage.

    Raises:
        InputError: an id is recorded twice.
    """
    for evidence in (candidate, baseline):
        twice = evidence.columns.repeated()
        if twice is not None:
            raise InputError(f"{twice[0]} {twice[1]!r} is recorded twice; the evidence is damaged")
    samples: dict[str, SamplePairs] = pair_samples(candidate.columns, baseline.columns)
    trials = _pair_trials(candidate, baseline, dialogues)
    return Pairing(
        candidate=_restrict(candidate, [pairs.candidate_rows for pairs in samples.values()], trials),
        baseline=_restrict(baseline, [pairs.baseline_rows for pairs in samples.values()], trials),
        kinds={**samples, "turn": trials},
    )


def _pair_trials(candidate: Evidence, baseline: Evidence, dialogues: DialogueSetup | None) -> TrialPairs:
    ours, theirs = _trials(candidate), _trials(baseline)
    paired = frozenset(
        trial
        for trial, length in ours.usable.items()
        if theirs.usable.get(trial) == length and _same_dialogue(ours.turns[trial], theirs.turns[trial])
    )
    planned = frozenset(ours.tags) | frozenset(theirs.tags) | _planned_trials(dialogues)
    none: frozenset[str] = frozenset()
    return TrialPairs(
        PairCounts(len(ours.usable), len(theirs.usable), len(paired), len(planned)),
        paired,
        planned,
        {trial: ours.tags.get(trial, none) | theirs.tags.get(trial, none) for trial in planned},
    )


@dataclass(frozen=True)
class _Trials:
    """Trials of one model: all with their tags, the usable ones with what must be equal in a pair."""

    tags: dict[Trial, frozenset[str]]
    usable: dict[Trial, int]
    turns: dict[Trial, dict[int, str]]


def _trials(evidence: Evidence) -> _Trials:
    tags: dict[Trial, frozenset[str]] = {}
    usable: dict[Trial, int] = {}
    trials: defaultdict[Trial, list[TurnRecord]] = defaultdict(list)
    for turn in evidence.turns:
        trials[turn.dialogue_id, turn.trial].append(turn)
    texts: dict[Trial, dict[int, str]] = {}
    for trial, turns in trials.items():
        texts[trial] = _user_texts(turns)
        tags[trial] = frozenset(tag for turn in turns for tag in turn.tags)
        if all(turn.status != "infrastructure_fault" for turn in turns):
            usable[trial] = turns[0].dialogue_turns
    return _Trials(tags, usable, texts)


def _user_texts(turns: Sequence[TurnRecord]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for turn in turns:
        if turn.turn_index in texts:
            where = f"dialogue {turn.dialogue_id!r} trial {turn.trial} turn {turn.turn_index}"
            raise InputError(f"{where} is recorded twice; the evidence is damaged")
        texts[turn.turn_index] = turn.user_text
    return texts


def _same_dialogue(ours: Mapping[int, str], theirs: Mapping[int, str]) -> bool:
    """Whether the user said the same as far as both went (one may have ended earlier)."""
    return all(text == theirs.get(index, text) for index, text in ours.items())


def _planned_trials(dialogues: DialogueSetup | None) -> frozenset[Trial]:
    if dialogues is None:
        return frozenset()
    copies = set(dialogues.unvaried if dialogues.varies else dialogues.dialogue_ids)
    # Trials without a source of variation are copies: the first carries all that there is to know.
    return frozenset(
        (name, trial)
        for name in dialogues.dialogue_ids
        for trial in range(1 if name in copies else dialogues.repeated.get(name, dialogues.trials))
    )


def _restrict(evidence: Evidence, rows: Sequence[RowArray], trials: TrialPairs) -> Evidence:
    chosen = np.sort(np.concatenate([np.empty(0, np.intp), *rows]))
    turns = tuple(turn for turn in evidence.turns if (turn.dialogue_id, turn.trial) in trials.paired)
    if len(chosen) == len(evidence.samples) and len(turns) == len(evidence.turns):
        # Every record is one of a pair: what is known of the whole evidence needn't be computed again.
        return evidence
    return Evidence(samples=evidence.columns.chosen(chosen), turns=turns)
