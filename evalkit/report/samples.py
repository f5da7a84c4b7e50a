"""The texts that surprised the candidate most, with the tokens that did."""

from dataclasses import dataclass

import numpy as np

from evalkit.report import numbers
from evalkit.report.text import Segment, highlight
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import SampleRecord

MAX_SAMPLES = 12
_MAX_CHARACTERS = 1500


@dataclass(frozen=True)
class SampleView:
    """One text: its id, figures, and the text with its most surprising tokens marked."""

    sample_id: str
    tags: tuple[str, ...]
    per_token: str
    tokens: str
    baseline_per_token: str
    segments: tuple[Segment, ...]
    cut: bool


def worst_samples(candidate: Evidence, baseline: Evidence | None) -> list[SampleView]:
    """The texts with the highest mean surprise a token, worst first."""
    texts = candidate.columns.of_kind("text")
    shown = texts.where(texts.equals("status", "ok") & (texts.counts("scored") > 0) & texts.has_text())
    means = shown.nll / shown.counts("scored")
    if len(shown) > MAX_SAMPLES:
        # Those that tie with the last one shown come too: ids decide among them.
        least = np.partition(means, -MAX_SAMPLES)[-MAX_SAMPLES]
        shown = shown.where(means >= least)
    worst = sorted(shown, key=lambda sample: (-_per_token(sample), sample.sample_id))[:MAX_SAMPLES]
    others = {} if baseline is None else _with_ids(baseline, {sample.sample_id for sample in worst})
    return [_view(sample, others.get(sample.sample_id)) for sample in worst]


def _with_ids(evidence: Evidence, names: set[str]) -> dict[str, SampleRecord]:
    texts = evidence.columns.of_kind("text")
    return {sample.sample_id: sample for sample in texts.where(texts.named(names))}


def _per_token(sample: SampleRecord) -> float:
    return sample.nll / sample.scored


def _view(sample: SampleRecord, other: SampleRecord | None) -> SampleView:
    text = sample.text or ""
    shown = text[:_MAX_CHARACTERS]
    size = len(shown.encode("utf-8", "surrogatepass"))
    worst = [span for span in sample.worst if span[1] <= size]
    comparable = other is not None and other.status == "ok" and other.scored > 0
    return SampleView(
        sample_id=sample.sample_id,
        tags=tuple(sample.tags),
        per_token=numbers.number(_per_token(sample), "nats"),
        tokens=numbers.count(sample.scored),
        baseline_per_token=numbers.number(_per_token(other), "nats") if comparable and other else "",
        segments=tuple(highlight(shown, worst)),
        cut=len(text) > len(shown),
    )
