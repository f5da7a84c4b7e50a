"""The text metrics under the weights of another traffic: the slice `resampled`, beside the plain numbers.

A metric is built on single texts, whose numbers are then weighted and added up by cluster: intervals and comparisons go on
seeing clusters as the independent units. The weights count as given in them. That errs towards too wide: weights that
follow the target's bins take out the variance between the bins, as stratification does, and a target is only accepted
with at least as many texts as the effective sample size.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from evalkit.errors import InputError
from evalkit.metrics import logits, own, perplexity, token_calibration
from evalkit.metrics.context import MetricContext, ResampleSetup
from evalkit.metrics.estimators import (
    Estimator,
    FloatArray,
    NamedEstimator,
    Proportion,
    RatioEstimator,
    group_clusters,
)
from evalkit.resampling.reweighting import cluster_totals, effective_size
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import SampleRecord
from evalkit.statistics.intervals import MIN_CLUSTERS

SLICE = "resampled"

# The metric that carries everything that is known of the weights.
_MAIN = "perplexity/token"

_BIASED = "how far a weighted calibration error lies above the truth isn't known; see that of all texts"

IndexArray = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class WeightedRatio(RatioEstimator):
    """A ratio of weighted sums.

    Attributes:
        units: in the plain denominator of the texts that have a weight.
    """

    units: int = 0

    @property
    def n(self) -> int:
        """Units, not their weights."""
        return self.units


@dataclass(frozen=True, eq=False)
class WeightedEstimator:
    """Any statistic of single texts under weights of the texts.

    Attributes:
        inner: the statistic; its clusters are single texts.
        weights: of those texts, shape (texts,).
        clusters: sorted; index: the cluster of each text.
    """

    inner: Estimator
    weights: FloatArray
    clusters: tuple[str, ...]
    index: IndexArray

    @property
    def n(self) -> int:
        """That of the statistic."""
        return self.inner.n

    @property
    def value(self) -> float | None:
        """The statistic under the weights; None where it is undefined."""
        value = float(self.replicates(np.ones((1, len(self.clusters))))[0])
        return value if math.isfinite(value) else None

    def replicates(self, weights: FloatArray) -> FloatArray:
        """See `Estimator.replicates`."""
        return self.inner.replicates(weights[:, self.index] * self.weights)


def signature(setup: ResampleSetup) -> str:
    """What a signature says of the weights."""
    return f"resample:{setup.digest[:8]}"


def estimators(
    evidence: Evidence, context: MetricContext, setup: ResampleSetup, metrics: Sequence[own.OwnMetric]
) -> list[NamedEstimator]:
    """Every metric of the texts, re-weighted; each null with the reason where the weights don't suffice.

    Raises:
        InputError: a scored text has no weight.
    """
    texts = evidence.columns.of_kind("text").listed()
    for sample in texts:
        if sample.status == "ok" and sample.sample_id not in setup.weights:
            raise InputError(
                f"plan.json: measurement: resample: no weight for the text {sample.sample_id!r}; the plan is damaged"
            )
    cluster_of = {sample.sample_id: sample.cluster for sample in texts}
    return [weighted(named, setup, cluster_of) for named in text_by_text(texts, context, metrics)]


def text_by_text(
    texts: Sequence[SampleRecord], context: MetricContext, metrics: Sequence[own.OwnMetric]
) -> list[NamedEstimator]:
    """Every metric of the texts with each text as a cluster of its own, so that any weights can be put on it."""
    single = Evidence(samples=tuple(replace(sample, cluster=sample.sample_id) for sample in texts))
    alone = replace(context, slices=(), resample=None)
    families = (perplexity, logits, token_calibration)
    found = [named for family in families for named in family.estimators(single, alone)]
    return found + own.estimators(single, alone, [metric for metric in metrics if metric.evidence == "text"])


def weighted(named: NamedEstimator, setup: ResampleSetup, cluster_of: dict[str, str]) -> NamedEstimator:
    """A metric of `text_by_text` under weights; null with the reason where they don't suffice.

    Args:
        named: the metric.
        setup: weights and what is known of them.
        cluster_of: the cluster of each text.
    """
    found = NamedEstimator(named.name, slice=SLICE, coverage=named.coverage)
    inner = named.estimator
    if setup.problem is not None or inner is None or inner.value is None:
        details = setup.details if named.name == _MAIN else {}
        return replace(found, reason=setup.problem or named.reason, details=dict(details))
    weights = np.array([setup.weights[name] for name in inner.clusters])
    clusters, index = group_clusters([cluster_of[name] for name in inner.clusters])
    effective = effective_size(weights), effective_size(cluster_totals(index, weights))
    details = {"effective_sample_size": effective[0], "effective_clusters": effective[1]}
    if named.name == _MAIN:
        details = {**setup.details, **details}
    if named.bias:
        return replace(found, reason=_BIASED, details=details)
    if min(effective) < MIN_CLUSTERS:
        reason = (
            f"the weights leave an effective sample size of {min(effective):.1f} texts or clusters that hold any of it; "
            f"{MIN_CLUSTERS} are needed"
        )
        return replace(found, reason=reason, details=details)
    return replace(
        found,
        estimator=_estimator(inner, weights, clusters, index),
        details=details,
        # Exact bounds are of counted outcomes; weighted ones aren't counts.
        method="cluster-bootstrap" if isinstance(inner, Proportion) else None,
    )


def _estimator(
    inner: Estimator, weights: FloatArray, clusters: tuple[str, ...], index: IndexArray
) -> Estimator:
    if not isinstance(inner, RatioEstimator):
        return WeightedEstimator(inner, weights, clusters, index)
    return WeightedRatio(
        clusters,
        np.bincount(index, weights * inner.numerators, len(clusters)).astype(np.float64),
        np.bincount(index, weights * inner.denominators, len(clusters)).astype(np.float64),
        inner.transform,
        inner.scale,
        round(math.fsum(inner.denominators[weights > 0])),
    )
