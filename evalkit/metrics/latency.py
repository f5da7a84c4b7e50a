"""Latency as the user meets it: median and tail from the planned start, a failed turn counted as infinite."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from evalkit.metrics.context import DialogueSetup, MetricContext
from evalkit.metrics.dialogue import dialogue_slices
from evalkit.metrics.estimators import FloatArray, NamedEstimator, ShareEstimator, group_clusters
from evalkit.metrics.trials import Trial, TrialSet, group_trials
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import TurnRecord
from evalkit.statistics.intervals import Question, uncertainty

# Rows of weights that are expanded to turns at a time (bounds the memory).
_ROWS = 128


@dataclass(frozen=True, eq=False)
class QuantileEstimator:
    """A quantile of times over clusters; infinite times are ranked last.

    Attributes:
        clusters: sorted, unique.
        times: milliseconds, ascending, shape (turns,).
        owners: index of each time's cluster, shape (turns,).
        share: 0.5 for the median.
    """

    clusters: tuple[str, ...]
    times: FloatArray
    owners: "np.ndarray[Any, np.dtype[np.intp]]"
    share: float

    @classmethod
    def build(cls, unit_clusters: Sequence[str], times: Sequence[float], share: float) -> "QuantileEstimator":
        """Sort times with their clusters.

        Args:
            unit_clusters: cluster of each time.
            times: milliseconds; infinite for a failed turn.
            share: between 0 and 1.
        """
        clusters, owners = group_clusters(unit_clusters)
        values = np.asarray(times, dtype=np.float64)
        order = np.argsort(values, kind="stable")
        return cls(clusters, values[order], owners[order], share)

    @property
    def n(self) -> int:
        """Turns, failed ones included."""
        return len(self.times)

    @property
    def value(self) -> float | None:
        """The quantile; None where it is infinite or there are no turns."""
        if not self.n:
            return None
        found = float(self.replicates(np.ones((1, len(self.clusters))))[0])
        return None if math.isnan(found) else found

    def replicates(self, weights: FloatArray) -> FloatArray:
        """See `Estimator.replicates`; NaN where the quantile is infinite.

        A quantile is the smallest time with at least `share` of the weight at or below it; where the weight
        is met exactly, the mean of it and the next one (the textbook median of an even number).
        """
        results = np.empty(len(weights))
        for start in range(0, len(weights), _ROWS):
            results[start : start + _ROWS] = self._rows(weights[start : start + _ROWS])
        return results

    def _rows(self, weights: FloatArray) -> FloatArray:
        reached = np.cumsum(weights[:, self.owners], axis=1)
        total = reached[:, -1]
        target = self.share * total
        # Weights are whole numbers; a tolerance absorbs the rounding of share * total alone.
        slack = 1e-9 * np.maximum(total, 1.0)
        lower = (reached < (target - slack)[:, np.newaxis]).sum(axis=1)
        upper = np.minimum((reached <= (target + slack)[:, np.newaxis]).sum(axis=1), self.n - 1)
        with np.errstate(invalid="ignore"):
            found = (self.times[np.minimum(lower, self.n - 1)] + self.times[upper]) / 2
        return np.where((total > 0) & np.isfinite(found), found, np.nan)


def estimators(evidence: Evidence, context: MetricContext) -> list[NamedEstimator]:
    """latency/first_token, /turn_overhead and /per_token, over all dialogues and each slice of them.

    Every trial counts, copies too: their times are independent of their texts. The first turn of a trial that
    got no answer, and each one with an empty answer, is infinite; turns that were never said have no time.
    """
    setup = context.dialogues
    if setup is None:
        return []
    found: list[NamedEstimator] = []
    for name in dialogue_slices(context):
        trials = group_trials(evidence.turns, setup, name)
        for metric, read in _METRICS.items():
            found.append(_latency(metric, name, read, trials, setup, context))
    return found


def _latency(
    metric: str,
    slice: str | None,
    read: "Callable[[TurnRecord], float | None]",
    trials: TrialSet,
    setup: DialogueSetup,
    context: MetricContext,
) -> NamedEstimator:
    turns = [turn for own in trials.by_dialogue.values() for trial in own for turn in _spoken(trial)]
    timed = [(turn.dialogue_id, _time(turn, read)) for turn in turns]
    units = [(key, time) for key, time in timed if time is not None]
    planned = sum(setup.turns[key] * setup.trials for key in trials.dialogue_ids)
    recorded = sum(len(trial.turns) for own in trials.by_dialogue.values() for trial in own)
    # A served model may not tell how many tokens it generated; a reply of one token has no time a token, which is known.
    unknown = sum(_untold(turn) for turn in turns) if metric == "latency/per_token" else 0
    coverage = (recorded - unknown) / planned if planned else None
    if not units:
        reason = "the engine doesn't tell how many tokens it generated" if unknown else "no turn was timed"
        return NamedEstimator(metric, slice=slice, reason=reason, coverage=coverage)
    clusters, times = [key for key, _ in units], [time for _, time in units]
    median = QuantileEstimator.build(clusters, times, 0.5)
    details: dict[str, Any] = {
        "p95": QuantileEstimator.build(clusters, times, 0.95).value,
        "p99": QuantileEstimator.build(clusters, times, 0.99).value,
        "failed_turns": sum(math.isinf(time) for time in times),
        "within": [_within(clusters, times, ms, context) for ms in _budgets(metric, setup, context)],
    }
    if unknown:
        details["turns_unknown"] = unknown
    return NamedEstimator(
        metric,
        slice=slice,
        estimator=median,
        reason="half of the turns or more failed: the median is infinite" if median.value is None else None,
        coverage=coverage,
        details=details,
    )


def _spoken(trial: Trial) -> list[TurnRecord]:
    """The turns that were said to the model: up to the first that got no answer."""
    spoken = []
    for turn in trial.turns:
        if turn.total_ns is not None:
            spoken.append(turn)
            continue
        if turn.status != "ok":
            spoken.append(turn)
        break
    return spoken


def _time(turn: TurnRecord, read: "Callable[[TurnRecord], float | None]") -> float | None:
    return math.inf if turn.status != "ok" else read(turn)


def _untold(turn: TurnRecord) -> bool:
    return turn.status == "ok" and turn.total_ns is not None and turn.generated_tokens is None


def _within(
    clusters: Sequence[str], times: Sequence[float], ms: float, context: MetricContext
) -> dict[str, Any]:
    inside = [float(time <= ms) for time in times]
    share = ShareEstimator.from_units(clusters, inside, [1.0] * len(times))
    answer = uncertainty(Question(share, "exact-binomial"), confidence=context.confidence, seed=context.seed)
    return {
        "ms": ms,
        "share": share.value,
        "n": share.n,
        "clusters": len(share.clusters),
        "bounds": None if answer.bounds is None else asdict(answer.bounds),
        "interval_reason": answer.reason,
    }


def _budgets(metric: str, setup: DialogueSetup, context: MetricContext) -> list[float]:
    own = {"latency/first_token": setup.first_token_ms, "latency/turn_overhead": setup.turn_overhead_ms}
    asked = {ms for name, ms in context.within if name == metric}
    return sorted(asked | {ms for ms in (own.get(metric),) if ms is not None})


def _first_token(turn: TurnRecord) -> float | None:
    return None if turn.first_token_ns is None else turn.first_token_ns / 1e6


def _turn_overhead(turn: TurnRecord) -> float | None:
    return None if turn.turn_overhead_ns is None else turn.turn_overhead_ns / 1e6


def _per_token(turn: TurnRecord) -> float | None:
    """Time a token after the first; None where there is only one."""
    if turn.total_ns is None or turn.first_token_ns is None or (turn.generated_tokens or 0) < 2:
        return None
    return (turn.total_ns - turn.first_token_ns) / ((turn.generated_tokens or 0) - 1) / 1e6


_METRICS: dict[str, Callable[[TurnRecord], float | None]] = {
    "latency/first_token": _first_token,
    "latency/turn_overhead": _turn_overhead,
    "latency/per_token": _per_token,
}
