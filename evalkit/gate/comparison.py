"""comparison.json: paired differences between candidate and baseline."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from evalkit.metrics.result import Direction, Interval
from evalkit.runs.json_fields import Reader, encode, finite_or_none, read_json
from evalkit.runs.results_io import StatusCounts, interval_from_dict, interval_to_dict, read_counts

SCHEMA = "evalkit.comparison/1"


@dataclass(frozen=True)
class Difference:
    """One way to express a change.

    Attributes:
        value, reason: exactly one of the two is None.
        interval, bounds: two-sided, and the pair of one-sided ends for the judge; None if not computable.
        interval_reason: why there is a value without an interval, else None.
    """

    value: float | None
    reason: str | None
    interval: Interval | None = None
    bounds: Interval | None = None
    interval_reason: str | None = None


@dataclass(frozen=True)
class ComparedMetric:
    """One metric of both models on the samples that both hold.

    Attributes:
        candidate, baseline: the values on the paired samples; None where undefined.
        absolute: candidate - baseline. relative: (candidate - baseline) / |baseline|.
        n: units in the candidate's denominator; clusters: independent units that both share.
        coverage: share of the samples of either model that are paired.
        signature, baseline_signature: unequal ones aren't comparable.
    """

    name: str
    k: int | None
    slice: str | None
    unit: str
    direction: Direction
    candidate: float | None
    baseline: float | None
    absolute: Difference
    relative: Difference
    n: int
    clusters: int
    coverage: float | None
    signature: str
    baseline_signature: str
    action: str | None = None


@dataclass(frozen=True)
class PairCounts:
    """Samples (texts, decisions, dialogue trials) of one kind of evidence.

    Attributes:
        candidate, baseline: usable samples of each model.
        paired: held by both, with equal content.
        planned: known to either model, usable or not.
    """

    candidate: int
    baseline: int
    paired: int
    planned: int


@dataclass(frozen=True)
class Comparison:
    """comparison.json.

    Attributes:
        baseline_complete, baseline_counts: as in the baseline's results; the same allowances hold for it.
        pairs: by kind of evidence (text, risk, turn).
        metrics: every metric that both models have.
    """

    run_id: str
    plan_sha256: str
    model_digest: str
    baseline_model_digest: str
    baseline_complete: bool
    baseline_counts: StatusCounts
    pairs: dict[str, PairCounts]
    metrics: tuple[ComparedMetric, ...]

    def find(self, name: str, k: int | None = None, slice: str | None = None) -> ComparedMetric | None:
        """The metric of that name, k and slice, or None."""
        wanted = (name, k, slice)
        return next((item for item in self.metrics if (item.name, item.k, item.slice) == wanted), None)

    def to_dict(self) -> dict[str, Any]:
        """The content of comparison.json."""
        return {
            "schema": SCHEMA,
            "run_id": self.run_id,
            "plan_sha256": self.plan_sha256,
            "model_digest": self.model_digest,
            "baseline_model_digest": self.baseline_model_digest,
            "baseline_complete": self.baseline_complete,
            "baseline_counts": self.baseline_counts,
            "pairs": {kind: asdict(counts) for kind, counts in self.pairs.items()},
            "metrics": [_metric_to_dict(item) for item in self.metrics],
        }

    def to_bytes(self) -> bytes:
        """The bytes of comparison.json; equal comparisons give equal bytes."""
        return encode(self.to_dict())


def read_comparison(path: Path) -> Comparison:
    """Read comparison.json strictly.

    Raises:
        InputError: missing, broken, or not what `to_bytes` writes.
    """
    reader = Reader(read_json(path), str(path))
    reader.one_of("schema", (SCHEMA,))
    pairs = {kind: Reader(item, f"{path}: pairs.{kind}") for kind, item in reader.mapping("pairs").items()}
    names = tuple(PairCounts.__dataclass_fields__)
    return Comparison(
        run_id=reader.text("run_id"),
        plan_sha256=reader.text("plan_sha256"),
        model_digest=reader.text("model_digest"),
        baseline_model_digest=reader.text("baseline_model_digest"),
        baseline_complete=reader.flag("baseline_complete"),
        baseline_counts=read_counts(reader.mapping("baseline_counts"), f"{path}: baseline_counts"),
        pairs={
            kind: PairCounts(**{name: item.integer(name) for name in names}) for kind, item in pairs.items()
        },
        metrics=tuple(
            _metric_from_dict(entry, f"{path}: metrics[{index}]")
            for index, entry in enumerate(reader.sequence("metrics"))
        ),
    )


def _metric_to_dict(metric: ComparedMetric) -> dict[str, Any]:
    entry = {name: finite_or_none(getattr(metric, name)) for name in ComparedMetric.__dataclass_fields__}
    entry["absolute"] = _difference_to_dict(metric.absolute)
    entry["relative"] = _difference_to_dict(metric.relative)
    return entry


def _difference_to_dict(difference: Difference) -> dict[str, Any]:
    value = finite_or_none(difference.value)
    lost = value is None and difference.reason is None
    return {
        "value": value,
        "reason": "the value isn't finite" if lost else difference.reason,
        "interval": interval_to_dict(difference.interval),
        "bounds": interval_to_dict(difference.bounds),
        "interval_reason": difference.interval_reason,
    }


def _metric_from_dict(entry: Any, where: str) -> ComparedMetric:
    reader = Reader(entry, where)
    return ComparedMetric(
        name=reader.text("name"),
        k=reader.integer_or_none("k"),
        slice=reader.text_or_none("slice"),
        unit=reader.text("unit"),
        direction=reader.one_of("direction", get_args(Direction)),
        candidate=reader.number("candidate"),
        baseline=reader.number("baseline"),
        absolute=_difference_from_dict(reader.mapping("absolute"), f"{where}.absolute"),
        relative=_difference_from_dict(reader.mapping("relative"), f"{where}.relative"),
        n=reader.integer("n"),
        clusters=reader.integer("clusters"),
        coverage=reader.number("coverage"),
        signature=reader.text("signature"),
        baseline_signature=reader.text("baseline_signature"),
        action=reader.text_or_none("action"),
    )


def _difference_from_dict(entry: Mapping[str, Any], where: str) -> Difference:
    reader = Reader(entry, where)
    return Difference(
        value=reader.number("value"),
        reason=reader.text_or_none("reason"),
        interval=interval_from_dict(reader.field("interval"), f"{where}.interval"),
        bounds=interval_from_dict(reader.field("bounds"), f"{where}.bounds"),
        interval_reason=reader.text_or_none("interval_reason"),
    )
