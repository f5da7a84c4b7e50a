"""Metrics of the user: declared as ours are, from records to an additive state to a value. See docs/own-metrics.md."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from evalkit.errors import InputError
from evalkit.metrics.context import MetricContext, OwnSetup
from evalkit.metrics.estimators import FloatArray, IntervalMethod, NamedEstimator, group_clusters
from evalkit.metrics.references import load_reference, modules_folder
from evalkit.metrics.result import Direction
from evalkit.metrics.spec import OWN_PREFIX, MetricSpec
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import SampleRecord, TurnRecord

_NAME = re.compile(rf"{OWN_PREFIX}[A-Za-z0-9_.-]+")
_METHODS = ("cluster-bootstrap", "percentile", "exact-binomial", "wilson", "bootstrap-and-exact")
# These count outcomes: their state is successes and trials.
_COUNTED = ("exact-binomial", "wilson", "bootstrap-and-exact")
_BASE = {"text": "text", "risk": "risk", "turn": "dialogue"}


@dataclass(frozen=True)
class OwnMetric:
    """The declaration of a user's metric.

    Attributes:
        name: `own/` and a name.
        unit: of the value.
        direction: which way is better.
        evidence: on which records it stands: texts, decisions or dialogue turns.
        state: of one record: numbers that are added up, the last one counting units (the n); None where the record
            says nothing. For an interval that counts outcomes it is (successes, trials).
        compute: from sums of states, shape (rows, numbers), to values, shape (rows,); NaN where undefined. It is
            asked once for the value and once for all bootstrap resamples.
        action: what to do when the value is bad.
        alarm: the value at which that is usually said.
        interval: how the interval is made: cluster-bootstrap, percentile (for statistics with jumps), exact-binomial,
            wilson or bootstrap-and-exact; see `IntervalMethod`.
        support: smallest and largest possible value.
        log_scale: whether a small-sample interval is made on the logarithm.
        two_sided: whether rules may limit it on either side: a share that should be neither high nor low.
    """

    name: str
    unit: str
    direction: Direction
    evidence: Literal["text", "risk", "turn"]
    state: Callable[[Any], Sequence[float] | None]
    compute: Callable[[FloatArray], FloatArray]
    action: str
    alarm: float
    interval: IntervalMethod = "cluster-bootstrap"
    support: tuple[float, float] = (-math.inf, math.inf)
    log_scale: bool = False
    two_sided: bool = False

    @property
    def spec(self) -> MetricSpec:
        """Its entry beside those of the registry."""
        side = "above" if self.direction == "lower" else "below"
        return MetricSpec(
            name=self.name,
            unit=self.unit,
            direction=self.direction,
            family=self.name,
            method=self.interval,
            support=self.support,
            action=f"{side} {self.alarm:g}: {self.action}",
            log_scale=self.log_scale,
            two_sided=self.two_sided,
        )


@dataclass(frozen=True, eq=False)
class OwnEstimator:
    """A user's statistic over clusters.

    Attributes:
        clusters: sorted ids.
        states: sums of each cluster, shape (clusters, numbers).
        metric: whose it is.
    """

    clusters: tuple[str, ...]
    states: FloatArray
    metric: OwnMetric

    @property
    def n(self) -> int:
        """The last number of the state, added up."""
        return round(math.fsum(self.states[:, -1]))

    @property
    def value(self) -> float | None:
        """Of the exact sums; None where it isn't a number."""
        sums = np.array([[math.fsum(column) for column in self.states.T]])
        value = float(self._compute(sums)[0])
        return value if math.isfinite(value) else None

    def replicates(self, weights: FloatArray) -> FloatArray:
        """See `Estimator.replicates`."""
        return self._compute(weights @ self.states)

    def _compute(self, sums: FloatArray) -> FloatArray:
        try:
            with np.errstate(all="ignore"):
                values = np.asarray(self.metric.compute(sums), dtype=np.float64)
        except Exception as error:  # a user's function may raise anything
            raise InputError(
                f"{self.metric.name}: compute failed with {type(error).__name__}: {error}"
            ) from None
        if values.shape != (len(sums),):
            raise InputError(
                f"{self.metric.name}: compute gave the shape {values.shape} for {len(sums)} rows of sums; "
                f"one value a row is needed, ({len(sums)},)"
            )
        return values


@dataclass(frozen=True, eq=False)
class OwnShare(OwnEstimator):
    """A user's share of counted outcomes, so that exact bounds apply."""

    @property
    def largest(self) -> float:
        """See `Proportion`."""
        return 1.0

    def outcomes(self) -> tuple[FloatArray, FloatArray]:
        """See `Proportion.outcomes`."""
        return self.states[:, 0], self.states[:, 1]


def own_setup(reference: str, modules: Path | None) -> tuple[OwnSetup, OwnMetric]:
    """Load a metric for the first time.

    Raises:
        InputError: it can't be loaded, or its declaration doesn't hold.
    """
    loaded = load_reference(reference, modules)
    return OwnSetup(reference, loaded.sha256), _checked(loaded.target, reference)


def load_own(context: MetricContext) -> list[OwnMetric]:
    """The user's metrics of an evaluation, in the scenario's order.

    Raises:
        InputError: the code isn't there, or isn't that of the run.
    """
    return [
        _checked(load_reference(setup.reference, modules_folder(), setup.sha256).target, setup.reference)
        for setup in context.own
    ]


def own_signature(base: dict[str, str], metric: OwnMetric, setup: OwnSetup) -> str:
    """Signature of a user's metric: that of the evidence under it, and its code."""
    return f"{base.get(_BASE[metric.evidence], 'none')}|own:{setup.sha256[:8]}"


def estimators(
    evidence: Evidence, context: MetricContext, metrics: Sequence[OwnMetric]
) -> list[NamedEstimator]:
    """Every metric of the user over all records, and each asked slice that holds one."""
    found = []
    for metric in metrics:
        records: Sequence[SampleRecord | TurnRecord] = (
            evidence.turns
            if metric.evidence == "turn"
            else evidence.columns.of_kind(metric.evidence).listed()
        )
        found.append(_of_records(metric, records, None))
        for name in context.slices:
            members = [record for record in records if name in record.tags]
            if members:
                found.append(_of_records(metric, members, name))
    return found


def _of_records(
    metric: OwnMetric, records: Sequence[SampleRecord | TurnRecord], slice: str | None
) -> NamedEstimator:
    usable = [record for record in records if record.status in ("ok", "model_fault")]
    coverage = len(usable) / len(records) if records else None
    states = [(record, state) for record in usable if (state := _state(metric, record)) is not None]
    if not states:
        reason = f"the run has no usable {metric.evidence} record that it speaks of"
        return NamedEstimator(metric.name, slice=slice, reason=reason, coverage=coverage)
    sizes = {len(state) for _, state in states}
    if len(sizes) != 1:
        raise InputError(f"{metric.name}: state gives {sorted(sizes)} numbers; give equally many each time")
    clusters, index = group_clusters([_cluster(record) for record, _ in states])
    sums = np.zeros((len(clusters), sizes.pop()))
    np.add.at(sums, index, np.array([state for _, state in states]))
    estimator = (OwnShare if metric.interval in _COUNTED else OwnEstimator)(clusters, sums, metric)
    if isinstance(estimator, OwnShare):
        _check_share(estimator)
    undefined = None if estimator.value is not None else "compute gives no finite number for the sums"
    return NamedEstimator(metric.name, slice=slice, estimator=estimator, reason=undefined, coverage=coverage)


def _state(metric: OwnMetric, record: SampleRecord | TurnRecord) -> tuple[float, ...] | None:
    name = record.sample_id if isinstance(record, SampleRecord) else record.turn_id
    try:
        given = metric.state(record)
        state = None if given is None else tuple(float(number) for number in given)
    except Exception as error:  # a user's function may raise anything
        raise InputError(
            f"{metric.name}: state failed for record {name!r} with {type(error).__name__}: {error}"
        ) from None
    if state is not None and not (
        state and all(math.isfinite(number) for number in state) and state[-1] >= 0
    ):
        raise InputError(
            f"{metric.name}: state gave {state} for record {name!r}; finite numbers are needed, the last one "
            "counting units"
        )
    return state


def _check_share(estimator: OwnShare) -> None:
    name, states = estimator.metric.name, estimator.states
    if states.shape[1] != 2 or not ((states[:, 0] >= 0) & (states[:, 0] <= states[:, 1])).all():
        raise InputError(f"{name}: an interval that counts outcomes needs the state (successes, trials)")
    total = math.fsum(states[:, 1])
    share = math.fsum(states[:, 0]) / total if total else math.nan
    if estimator.value is not None and not math.isclose(estimator.value, share, rel_tol=1e-12):
        raise InputError(f"{name}: compute gives {estimator.value}, the counted share is {share}")


def _cluster(record: SampleRecord | TurnRecord) -> str:
    return record.cluster if isinstance(record, SampleRecord) else record.dialogue_id


def _checked(target: Any, reference: str) -> OwnMetric:
    if not isinstance(target, OwnMetric):
        raise InputError(
            f"{reference}: an evalkit.metrics.own.OwnMetric is needed (got {type(target).__name__}); "
            "see docs/own-metrics.md"
        )
    problems = {
        "name": isinstance(target.name, str) and _NAME.fullmatch(target.name) is not None,
        "unit": isinstance(target.unit, str) and bool(target.unit),
        "direction": target.direction in get_args(Direction),
        "evidence": target.evidence in _BASE,
        "interval": target.interval in _METHODS,
        "action": isinstance(target.action, str) and bool(target.action),
        "alarm": isinstance(target.alarm, int | float) and math.isfinite(target.alarm),
    }
    wrong = next((field for field, right in problems.items() if not right), None)
    if wrong is not None:
        shown = f"{getattr(target, wrong)!r:.60}"
        hint = f" (it begins with {OWN_PREFIX})" if wrong == "name" else ""
        raise InputError(f"{reference}: {wrong}: {shown} isn't possible{hint}; see docs/own-metrics.md")
    return target
