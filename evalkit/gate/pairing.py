"""Which samples of candidate and baseline belong together: equal texts, decisions or dialogue trials.

Both models are then measured on exactly these, so that a difference is one of the models, not of the samples.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from evalkit.errors import InputError
from evalkit.gate.comparison import PairCounts
from evalkit.metrics.context import DialogueSetup
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import SampleRecord, TurnRecord

KINDS = ("text", "risk", "turn")

# (kind, id, trial); the trial of a text or decision is 0.
Unit = tuple[str, str, int]


@dataclass(frozen=True)
class Pairing:
    """Both models' evidence cut down to the paired samples.

    Attributes:
        candidate, baseline: the paired records of each model.
        paired, planned: units held by both, and units known to either.
        usable: usable units of the candidate and of the baseline.
        tags: of each unit, for slices.
    """

    candidate: Evidence
    baseline: Evidence
    paired: frozenset[Unit]
    planned: frozenset[Unit]
    usable: tuple[frozenset[Unit], frozenset[Unit]]
    tags: dict[Unit, frozenset[str]]
    _counts: dict[str | None, Counter[tuple[str, str]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def counts(self, kind: str) -> PairCounts:
        """How many units of `kind` are paired."""
        candidate, baseline = self.usable
        return PairCounts(
            candidate=_count(candidate, kind),
            baseline=_count(baseline, kind),
            paired=_count(self.paired, kind),
            planned=_count(self.planned, kind),
        )

    def coverage(self, kinds: Iterable[str], slice: str | None) -> float | None:
        """Paired units over planned ones of some kinds, within a slice; None where nothing was planned."""
        planned, paired = 0, 0
        for kind in set(kinds):
            planned += self._counted(slice)["planned", kind]
            paired += self._counted(slice)["paired", kind]
        return paired / planned if planned else None

    def _counted(self, slice: str | None) -> Counter[tuple[str, str]]:
        """Planned and paired units of each kind within a slice, counted once."""
        if slice not in self._counts:
            found: Counter[tuple[str, str]] = Counter()
            for name, units in (("planned", self.planned), ("paired", self.paired)):
                kinds = Counter(
                    unit[0] for unit in units if slice is None or slice in self.tags.get(unit, ())
                )
                found.update({(name, kind): number for kind, number in kinds.items()})
            self._counts[slice] = found
        return self._counts[slice]


def pair(candidate: Evidence, baseline: Evidence, dialogues: DialogueSetup | None = None) -> Pairing:
    """Pair by sample id: equal content, usable in both.

    Args:
        candidate, baseline: everything that was recorded.
        dialogues: what was planned, so that a dialogue that neither model finished lowers the coverage.

    Raises:
        InputError: an id is recorded twice.
    """
    ours, theirs = _units(candidate), _units(baseline)
    paired = frozenset(unit for unit, content in ours.usable.items() if theirs.usable.get(unit) == content)
    paired = _same_dialogues(paired, ours, theirs)
    return Pairing(
        candidate=_restrict(candidate, ours, paired),
        baseline=_restrict(baseline, theirs, paired),
        paired=paired,
        planned=frozenset(ours.tags) | frozenset(theirs.tags) | _planned_trials(dialogues),
        usable=(frozenset(ours.usable), frozenset(theirs.usable)),
        tags={
            unit: ours.tags.get(unit, frozenset()) | theirs.tags.get(unit, frozenset())
            for unit in {**ours.tags, **theirs.tags}
        },
    )


@dataclass(frozen=True)
class _Units:
    """Units of one model: all with their tags, the usable ones with what must be equal in a pair."""

    tags: dict[Unit, frozenset[str]]
    usable: dict[Unit, object]
    turns: dict[Unit, dict[int, str]]


def _units(evidence: Evidence) -> _Units:
    tags: dict[Unit, frozenset[str]] = {}
    usable: dict[Unit, object] = {}
    for sample in evidence.samples:
        unit = _sample_unit(sample)
        if unit in tags:
            raise InputError(f"{sample.kind} {sample.sample_id!r} is recorded twice; the evidence is damaged")
        tags[unit] = frozenset(sample.tags)
        if sample.status == "ok":
            usable[unit] = (sample.digest, sample.cluster, sample.part)
    trials: defaultdict[Unit, list[TurnRecord]] = defaultdict(list)
    for turn in evidence.turns:
        trials[_turn_unit(turn)].append(turn)
    texts: dict[Unit, dict[int, str]] = {}
    for unit, turns in trials.items():
        texts[unit] = _user_texts(turns)
        tags[unit] = frozenset(tag for turn in turns for tag in turn.tags)
        if all(turn.status != "infrastructure_fault" for turn in turns):
            usable[unit] = turns[0].dialogue_turns
    return _Units(tags, usable, texts)


def _user_texts(turns: Sequence[TurnRecord]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for turn in turns:
        if turn.turn_index in texts:
            where = f"dialogue {turn.dialogue_id!r} trial {turn.trial} turn {turn.turn_index}"
            raise InputError(f"{where} is recorded twice; the evidence is damaged")
        texts[turn.turn_index] = turn.user_text
    return texts


def _same_dialogues(paired: frozenset[Unit], ours: _Units, theirs: _Units) -> frozenset[Unit]:
    """Keep trials in which the user said the same as far as both went (one may have ended earlier)."""
    return frozenset(
        unit
        for unit in paired
        if unit[0] != "turn"
        or all(text == theirs.turns[unit].get(index, text) for index, text in ours.turns[unit].items())
    )


def _planned_trials(dialogues: DialogueSetup | None) -> frozenset[Unit]:
    if dialogues is None:
        return frozenset()
    copies = set(dialogues.unvaried if dialogues.varies else dialogues.dialogue_ids)
    # Trials without a source of variation are copies: the first carries all that there is to know.
    return frozenset(
        ("turn", name, trial)
        for name in dialogues.dialogue_ids
        for trial in range(1 if name in copies else dialogues.trials)
    )


def _restrict(evidence: Evidence, units: _Units, paired: frozenset[Unit]) -> Evidence:
    if len(paired) == len(units.tags):
        # Every record is one of a pair: what is known of the whole evidence needn't be computed again.
        return evidence
    return Evidence(
        samples=tuple(sample for sample in evidence.samples if _sample_unit(sample) in paired),
        turns=tuple(turn for turn in evidence.turns if _turn_unit(turn) in paired),
    )


def _sample_unit(sample: SampleRecord) -> Unit:
    return (sample.kind, sample.sample_id, 0)


def _turn_unit(turn: TurnRecord) -> Unit:
    return ("turn", turn.dialogue_id, turn.trial)


def _count(units: frozenset[Unit], kind: str) -> int:
    return sum(unit[0] == kind for unit in units)
