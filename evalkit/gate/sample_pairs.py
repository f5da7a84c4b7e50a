"""Texts, decisions and perturbed texts that both models hold: joined by id, column against column."""

from dataclasses import dataclass

import numpy as np

from evalkit.gate.comparison import PairCounts
from evalkit.runs.samples import BoolArray, RowArray, Samples, TextField

# What must be equal in a pair.
_CONTENT: tuple[TextField, ...] = ("digest", "cluster", "part")


@dataclass(frozen=True, eq=False)
class SamplePairs:
    """The pairs of one kind.

    Attributes:
        counts: of samples.
        candidate_rows, baseline_rows: places of the paired ones among all samples of each model, in no order.
        candidate, baseline: all samples of the kind.
        met: for each of the candidate's the place of the baseline's of that id, -1 for none.
        paired: for each of the candidate's whether it is one of a pair.
    """

    counts: PairCounts
    candidate_rows: RowArray
    baseline_rows: RowArray
    candidate: Samples
    baseline: Samples
    met: RowArray
    paired: BoolArray

    def in_slice(self, tag: str) -> tuple[int, int]:
        """Planned and paired samples that have a tag on either side."""
        ours, theirs = self.candidate.tagged(tag), self.baseline.tagged(tag)
        both = self.met >= 0
        either = ours.copy()
        either[both] |= theirs[self.met[both]]
        alone = theirs.copy()
        alone[self.met[both]] = False
        return int(either.sum() + alone.sum()), int((either & self.paired).sum())


def pair_samples(candidate: Samples, baseline: Samples) -> dict[str, SamplePairs]:
    """The pairs of each kind that either model has.

    Args:
        candidate, baseline: all samples; an id is unique within its kind.
    """
    import pyarrow.compute as pc

    kinds = {kind for side in (candidate, baseline) for kind in pc.unique(side.text("kind")).to_pylist()}
    return {kind: _of_kind(candidate, baseline, kind) for kind in sorted(kinds)}


def _of_kind(candidate: Samples, baseline: Samples, kind: str) -> SamplePairs:
    import pyarrow as pa
    import pyarrow.compute as pc

    ours, theirs = candidate.of_kind(kind), baseline.of_kind(kind)
    found = pc.index_in(ours.text("sample_id"), theirs.text("sample_id"))
    met = pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.intp)
    usable = ours.equals("status", "ok"), theirs.equals("status", "ok")
    at = np.flatnonzero(met >= 0)
    at = at[usable[0][at] & usable[1][met[at]]]
    for field in _CONTENT:
        mine = pc.fill_null(ours.text(field).take(pa.array(at)), "")
        other = pc.fill_null(theirs.text(field).take(pa.array(met[at])), "")
        at = at[pc.equal(mine, other).to_numpy(zero_copy_only=False).astype(np.bool_)]
    paired = np.zeros(len(ours), dtype=np.bool_)
    paired[at] = True
    counts = PairCounts(
        candidate=int(usable[0].sum()),
        baseline=int(usable[1].sum()),
        paired=len(at),
        planned=len(ours) + len(theirs) - int((met >= 0).sum()),
    )
    rows = np.flatnonzero(candidate.equals("kind", kind))[at]
    other_rows = np.flatnonzero(baseline.equals("kind", kind))[met[at]]
    return SamplePairs(counts, rows, other_rows, ours, theirs, met, paired)
