"""The texts that surprised the candidate most, with the tokens that did."""

from dataclasses import dataclass

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
    scored = [
        sample
        for sample in candidate.samples
        if sample.kind == "text" and sample.status == "ok" and sample.scored > 0 and sample.text is not None
    ]
    theirs = baseline.samples if baseline else ()
    others = {sample.sample_id: sample for sample in theirs if sample.kind == "text"}
    scored.sort(key=lambda sample: (-_per_token(sample), sample.sample_id))
    return [_view(sample, others.get(sample.sample_id)) for sample in scored[:MAX_SAMPLES]]


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
