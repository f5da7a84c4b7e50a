"""results.json: the metrics of one model with what was counted on the way.

`Results` is built from evidence and metrics, written by `to_bytes`, read back strictly by `read_results`.
Writing what was read gives the same bytes.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args

import numpy as np

from evalkit.errors import InputError
from evalkit.metrics.result import Direction, Interval, MetricResult
from evalkit.runs.evidence import Evidence
from evalkit.runs.json_fields import Reader, encode, finite_or_none, read_json
from evalkit.runs.records import SampleRecord, SampleStatus, TurnStatus
from evalkit.runs.samples import BoolArray, CountField, Samples

SCHEMA = "evalkit.results/1"

# Statuses of each kind of evidence, in the order in which they are written.
STATUSES: dict[str, tuple[str, ...]] = {
    "text": get_args(SampleStatus),
    "risk": get_args(SampleStatus),
    "turn": get_args(TurnStatus),
}

StatusCounts = dict[str, dict[str, int]]

_METRIC_FIELDS = tuple(item.name for item in fields(MetricResult) if item.name != "details")


@dataclass(frozen=True)
class Conservation:
    """What became of the texts; tokens and bytes are those of texts with status ok.

    tokens_encoded = tokens_scored + tokens_unconditioned; bytes - bytes_scored are those of the unconditioned tokens.
    `conservation` has made sure of it text by text, so that each token and byte was scored exactly once.
    """

    texts: int = 0
    ok: int = 0
    error: int = 0
    skipped: int = 0
    truncated: int = 0
    tokens_encoded: int = 0
    tokens_scored: int = 0
    tokens_unconditioned: int = 0
    bytes: int = 0
    bytes_scored: int = 0


@dataclass(frozen=True)
class Results:
    """results.json.

    Attributes:
        conservation: of the texts.
        counts: records by kind (text, risk, turn) and status; errors show even where no metric uses them.
        complete: whether everything planned was run; a partial run never passes.
        metrics: name, k and slice together are unique.
    """

    run_id: str
    plan_sha256: str
    model_digest: str
    conservation: Conservation
    counts: StatusCounts
    metrics: tuple[MetricResult, ...]
    complete: bool = True

    def find(self, name: str, k: int | None = None, slice: str | None = None) -> MetricResult | None:
        """The metric of that name, k and slice, or None."""
        wanted = (name, k, slice)
        return next((item for item in self.metrics if (item.name, item.k, item.slice) == wanted), None)

    def to_dict(self) -> dict[str, Any]:
        """The content of results.json.

        Raises:
            ValueError: a metric's details would overwrite a field, or a key is given twice.
        """
        keys = [(item.name, item.k, item.slice) for item in self.metrics]
        if len(set(keys)) != len(keys):
            raise ValueError(f"metric {Counter(keys).most_common(1)[0][0]} is given twice")
        return {
            "schema": SCHEMA,
            "run_id": self.run_id,
            "plan_sha256": self.plan_sha256,
            "model_digest": self.model_digest,
            "complete": self.complete,
            "conservation": asdict(self.conservation),
            "counts": self.counts,
            "metrics": [metric_to_dict(item) for item in self.metrics],
        }

    def to_bytes(self) -> bytes:
        """The bytes of results.json; equal results give equal bytes."""
        return encode(self.to_dict())


def build_results(
    evidence: Evidence,
    metrics: Sequence[MetricResult],
    *,
    run_id: str,
    plan_sha256: str,
    model_digest: str,
    complete: bool = True,
) -> Results:
    """Put the metrics of one model together with what its evidence says about lost and errored samples."""
    return Results(
        run_id=run_id,
        plan_sha256=plan_sha256,
        model_digest=model_digest,
        conservation=conservation(evidence.samples),
        counts=status_counts(evidence),
        metrics=tuple(metrics),
        complete=complete,
    )


def conservation(samples: Sequence[SampleRecord]) -> Conservation:
    """Count texts by status, and tokens and bytes of those with status ok.

    Raises:
        InputError: the parts of a text don't add up to the whole.
    """
    texts = Samples.of(samples).of_kind("text")
    scored = texts.where(texts.equals("status", "ok"))
    damaged = np.flatnonzero(_suspect(scored))
    if len(damaged):
        sample = scored[int(damaged[0])]
        raise InputError(f"evidence: text {sample.sample_id!r}: {_lost(sample)}; the evidence is damaged")
    statuses = texts.statuses()
    return Conservation(
        texts=len(texts),
        **{status: statuses["text", status] for status in get_args(SampleStatus)},
        tokens_encoded=_total(scored, "tokens"),
        tokens_scored=_total(scored, "scored"),
        tokens_unconditioned=_total(scored, "unconditioned"),
        bytes=_total(scored, "bytes"),
        bytes_scored=_total(scored, "bytes_scored"),
    )


def _total(samples: Samples, field: CountField) -> int:
    return int(samples.counts(field).sum())


def _suspect(scored: Samples) -> BoolArray:
    """Which scored texts lack something or count it twice; the sums are exact, so equality is meant literally."""
    parts = {field: np.zeros(len(scored)) for field in ("tokens", "bytes", "nll")}
    for columns in scored.sums("classes").values():
        for field, total in parts.items():
            total[columns.rows] += columns.sums[field]
    tokens, own, unconditioned = (
        scored.counts("tokens"),
        scored.counts("scored"),
        scored.counts("unconditioned"),
    )
    size, own_size = scored.counts("bytes"), scored.counts("bytes_scored")
    whole = (own_size == size) | ((unconditioned != 0) & (own_size < size))
    wrong: BoolArray = (
        (tokens != own + unconditioned)
        | (parts["tokens"] != own)
        | (parts["bytes"] != own_size)
        | (parts["nll"] != scored.nll)
        | ~whole
    )
    return wrong


def _lost(sample: SampleRecord) -> str:
    """What of a text that is `_suspect` is missing or counted twice."""
    parts = sample.classes.values()
    if sample.tokens != sample.scored + sample.unconditioned:
        return f"{sample.tokens} tokens, but {sample.scored} scored and {sample.unconditioned} unconditioned"
    if sum(part.tokens for part in parts) != sample.scored:
        return f"{sample.scored} tokens scored, but {sum(part.tokens for part in parts)} in its classes"
    if sum(part.bytes for part in parts) != sample.bytes_scored:
        return f"{sample.bytes_scored} bytes scored, but {sum(part.bytes for part in parts)} in its classes"
    if sum(part.nll for part in parts) != sample.nll:
        return "the sum over its classes isn't its whole surprise"
    return (
        f"{sample.bytes_scored} of {sample.bytes} bytes scored, {sample.unconditioned} tokens unconditioned"
    )


def status_counts(evidence: Evidence) -> StatusCounts:
    """Records by kind and status, every status named."""
    found = Counter(evidence.columns.statuses())
    found.update(("turn", str(turn.status)) for turn in evidence.turns)
    return {kind: {status: found[kind, status] for status in statuses} for kind, statuses in STATUSES.items()}


def metric_to_dict(metric: MetricResult) -> dict[str, Any]:
    """One entry of `metrics`; details stand beside the fields, numbers are finite or null.

    Raises:
        ValueError: a detail has the name of a field.
    """
    clash = sorted(set(metric.details) & set(_METRIC_FIELDS))
    if clash:
        raise ValueError(f"{metric.name}: details would overwrite the field {clash[0]!r}")
    entry: dict[str, Any] = {
        name: getattr(metric, name) for name in ("name", "k", "slice", "value", "reason")
    }
    if metric.value is not None and not math.isfinite(metric.value):
        entry["value"], entry["reason"] = None, metric.reason or f"the value isn't finite ({metric.value})"
    elif metric.value is not None:
        entry["value"] = float(metric.value)
    entry.update({name: getattr(metric, name) for name in _METRIC_FIELDS if name not in entry})
    entry["n"], entry["clusters"] = int(metric.n), int(metric.clusters)
    entry["interval"] = interval_to_dict(metric.interval)
    entry["bounds"] = interval_to_dict(metric.bounds)
    entry["coverage"] = finite_or_none(metric.coverage)
    entry.update({key: finite_or_none(value) for key, value in metric.details.items()})
    return entry


def metric_from_dict(entry: Mapping[str, Any], where: str) -> MetricResult:
    """Read one entry of `metrics`.

    Raises:
        InputError: a field is missing or of the wrong type.
    """
    reader = Reader(entry, where)
    value, reason = reader.number("value"), reader.text_or_none("reason")
    if (value is None) == (reason is None):
        raise InputError(f"{where}: exactly one of value and reason must be null; the file is damaged")
    return MetricResult(
        name=reader.text("name"),
        k=reader.integer_or_none("k"),
        slice=reader.text_or_none("slice"),
        value=value,
        reason=reason,
        unit=reader.text("unit"),
        direction=reader.one_of("direction", get_args(Direction)),
        n=reader.integer("n"),
        clusters=reader.integer("clusters"),
        signature=reader.text("signature"),
        coverage=reader.number("coverage"),
        interval=interval_from_dict(reader.field("interval"), f"{where}.interval"),
        bounds=interval_from_dict(reader.field("bounds"), f"{where}.bounds"),
        action=reader.text_or_none("action"),
        details={key: value for key, value in entry.items() if key not in _METRIC_FIELDS},
    )


def interval_to_dict(interval: Interval | None) -> dict[str, Any] | None:
    """An interval as JSON; an end that isn't finite is null."""
    if interval is None:
        return None
    return {key: finite_or_none(value) for key, value in asdict(interval).items()}


def interval_from_dict(value: Any, where: str) -> Interval | None:
    """Read an interval.

    Raises:
        InputError: not an interval.
    """
    if value is None:
        return None
    reader = Reader(value, where)
    confidence = reader.number("confidence")
    if confidence is None:
        raise InputError(f"{where}.confidence: a number is needed; the file is damaged")
    return Interval(
        low=reader.number("low"),
        high=reader.number("high"),
        confidence=confidence,
        sides=reader.one_of("sides", (1, 2)),
        method=reader.text("method"),
        resamples=reader.integer_or_none("resamples"),
        seed=reader.integer_or_none("seed"),
    )


def read_results(path: Path) -> Results:
    """Read a results file strictly.

    Raises:
        InputError: missing, broken, or not what `to_bytes` writes.
    """
    content = read_json(path)
    reader = Reader(content, str(path))
    reader.one_of("schema", (SCHEMA,))
    counts = reader.mapping("counts")
    conservation_reader = Reader(reader.mapping("conservation"), f"{path}: conservation")
    entries = reader.sequence("metrics")
    return Results(
        run_id=reader.text("run_id"),
        plan_sha256=reader.text("plan_sha256"),
        model_digest=reader.text("model_digest"),
        complete=reader.flag("complete"),
        conservation=Conservation(
            **{item.name: conservation_reader.integer(item.name) for item in fields(Conservation)}
        ),
        counts=read_counts(counts, f"{path}: counts"),
        metrics=tuple(
            metric_from_dict(entry, f"{path}: metrics[{index}]") for index, entry in enumerate(entries)
        ),
    )


def read_counts(value: Mapping[str, Any], where: str) -> StatusCounts:
    """Read records by kind and status.

    Raises:
        InputError: a kind or status is missing or not a whole number.
    """
    counts: StatusCounts = {}
    for kind, statuses in STATUSES.items():
        reader = Reader(Reader(value, where).mapping(kind), f"{where}.{kind}")
        counts[kind] = {status: reader.integer(status) for status in statuses}
    return counts
