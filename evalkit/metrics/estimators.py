"""The one notion every interval and every comparison is built on: a statistic over independent clusters."""

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import islice
from typing import Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from evalkit.metrics.accumulators import exact_sum

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.intp]

# How a metric gets its interval (see evalkit.statistics.intervals):
# cluster-bootstrap: percentile from 30 clusters on, bootstrap-t from 10, none below.
# percentile: the same, but never bootstrap-t, for statistics with jumps (a median).
# exact-binomial: Clopper-Pearson, with an effective n where a cluster holds several outcomes.
# wilson: the Wilson score interval of the same counts; right on average, where exact is never too narrow.
# bootstrap-and-exact: the wider end of both, for a share whose definition is itself estimated (a threshold).
# bounded-mean: the same as percentile, for a mean of values from 0 to a largest one; where all are 0, the exact
#   bound on the share above 0, times the largest.
# fixed-population: the value is a fact of a fixed list and its own bound.
IntervalMethod = Literal[
    "cluster-bootstrap",
    "percentile",
    "exact-binomial",
    "wilson",
    "bootstrap-and-exact",
    "bounded-mean",
    "fixed-population",
]

_LOG_MAX = math.log(np.finfo(np.float64).max)


class Estimator(Protocol):
    """A statistic of clustered evidence that can be recomputed under cluster weights.

    Attributes:
        clusters: sorted ids of the independent units (texts' clusters, dialogues, decisions' clusters).
        n: units in the denominator (tokens, decisions, dialogues, turns).
        value: the statistic on the whole evidence from exact sums, or None where it is undefined.
    """

    @property
    def clusters(self) -> tuple[str, ...]: ...

    @property
    def n(self) -> int: ...

    @property
    def value(self) -> float | None: ...

    def replicates(self, weights: FloatArray) -> FloatArray:
        """The statistic under each row of cluster weights.

        Args:
            weights: shape (replicates, clusters): how often each cluster was drawn.

        Returns:
            Shape (replicates,); NaN where the statistic is undefined.
        """
        ...


@runtime_checkable
class Proportion(Protocol):
    """An estimator of a share: it can say how many trials each cluster holds, and how many succeeded.

    Attributes:
        largest: what one trial adds at most: 1 for a share, the highest cost for a mean cost.
    """

    @property
    def largest(self) -> float: ...

    def outcomes(self) -> tuple[FloatArray, FloatArray]:
        """Successes and trials of each cluster, both of shape (clusters,)."""
        ...


@runtime_checkable
class Groupable(Protocol):
    """An estimator that can be cut down to groups of its clusters, for a bootstrap that draws groups."""

    def grouped(self, groups: IndexArray, size: int) -> Estimator:
        """The same statistic with each group as one cluster.

        Args:
            groups: of each cluster, shape (clusters,), from 0 to size - 1.
            size: how many groups.
        """
        ...


class MetricKey(NamedTuple):
    """What names one entry of results.json."""

    name: str
    k: int | None = None
    slice: str | None = None


@dataclass(frozen=True)
class NamedEstimator:
    """One metric of one model, ready for intervals and comparison.

    Attributes:
        name, k, slice: its key; unique among the metrics of a run.
        estimator: None where the metric can't have a value; then `reason` says why.
        reason: also set where the estimator exists but its value is None.
        coverage: share of the planned units that gave a result; None where nothing was planned.
        details: further fields of the result (p95, p99, counts).
        method: overrules the registry's interval method (e.g. fixed-population).
        widen: added to both sides of interval and bounds: a measured error that averaging doesn't remove.
        bias: by how much the statistic and its replicates lie above the truth at most; taken off the low ends.
    """

    name: str
    k: int | None = None
    slice: str | None = None
    estimator: Estimator | None = None
    reason: str | None = None
    coverage: float | None = 1.0
    details: dict[str, Any] = field(default_factory=dict)
    method: IntervalMethod | None = None
    widen: float = 0.0
    bias: float = 0.0

    @property
    def key(self) -> MetricKey:
        """Name, k and slice together."""
        return MetricKey(self.name, self.k, self.slice)


@dataclass(frozen=True, eq=False)
class RatioEstimator:
    """transform(scale * sum of numerators / sum of denominators) over clusters.

    Sums are exact where the numerators are whole numbers or fixed-point (see `evalkit.metrics.accumulators`).

    Attributes:
        clusters: sorted, unique.
        numerators, denominators: shape (clusters,); a cluster's own sums. Denominators aren't negative.
        transform: "identity" or "exp" (perplexities).
        scale: constant factor of the ratio (e.g. 1/ln 2).
    """

    clusters: tuple[str, ...]
    numerators: FloatArray
    denominators: FloatArray
    transform: Literal["identity", "exp"] = "identity"
    scale: float = 1.0

    @classmethod
    def from_units(
        cls,
        unit_clusters: Sequence[str],
        numerators: Sequence[float] | FloatArray,
        denominators: Sequence[float] | FloatArray,
        transform: Literal["identity", "exp"] = "identity",
        scale: float = 1.0,
    ) -> Self:
        """Sum units (texts, turns, probes) by their cluster.

        Args:
            unit_clusters: the cluster of each unit, in any order.
            numerators, denominators: of each unit.
            transform, scale: see the class.
        """
        clusters, index = group_clusters(unit_clusters)
        return cls.from_groups(clusters, index, numerators, denominators, transform, scale)

    @classmethod
    def from_groups(
        cls,
        clusters: tuple[str, ...],
        index: IndexArray,
        numerators: Sequence[float] | FloatArray,
        denominators: Sequence[float] | FloatArray,
        transform: Literal["identity", "exp"] = "identity",
        scale: float = 1.0,
    ) -> Self:
        """Sum units whose clusters are known by their place.

        Args:
            clusters: sorted, unique, each with a unit.
            index: of each unit's cluster.
            numerators, denominators: of each unit.
            transform, scale: see the class.
        """
        size = len(clusters)
        return cls(
            clusters=clusters,
            numerators=_sums(index, numerators, size),
            denominators=_sums(index, denominators, size),
            transform=transform,
            scale=scale,
        )

    @cached_property
    def n(self) -> int:
        """Units in the denominator."""
        return round(exact_sum(self.denominators))

    @cached_property
    def value(self) -> float | None:
        """The ratio of the exact sums; None where the denominator is zero or the result is beyond float64."""
        denominator = exact_sum(self.denominators)
        if denominator == 0:
            return None
        ratio = self.scale * (exact_sum(self.numerators) / denominator)
        if self.transform == "identity":
            return ratio
        return math.exp(ratio) if ratio <= _LOG_MAX else None

    def grouped(self, groups: IndexArray, size: int) -> Self:
        """See `Groupable`."""
        return replace(
            self,
            clusters=group_names(size),
            numerators=_sums(groups, self.numerators, size),
            denominators=_sums(groups, self.denominators, size),
        )

    def replicates(self, weights: FloatArray) -> FloatArray:
        """See `Estimator.replicates`; NaN where a replicate's denominator is zero."""
        numerators, denominators = weights @ self.numerators, weights @ self.denominators
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = self.scale * (numerators / denominators)
        ratio[denominators == 0] = np.nan
        return np.exp(ratio) if self.transform == "exp" else ratio


@dataclass(frozen=True, eq=False)
class ShareEstimator(RatioEstimator):
    """A ratio that counts successes (numerators) among trials (denominators), so that exact bounds apply."""

    @property
    def largest(self) -> float:
        """See `Proportion`."""
        return 1.0

    def outcomes(self) -> tuple[FloatArray, FloatArray]:
        """See `Proportion.outcomes`."""
        return self.numerators, self.denominators


class MappedEstimator(ABC):
    """A function of another statistic, value by value; its clusters and n are that one's.

    Attributes:
        inner: the statistic.
    """

    def __init__(self, inner: Estimator) -> None:
        self.inner = inner

    @abstractmethod
    def map(self, values: FloatArray) -> FloatArray:
        """The function of defined values, shape kept; NaN where it is undefined."""

    @property
    def clusters(self) -> tuple[str, ...]:
        """Those of the statistic."""
        return self.inner.clusters

    @property
    def n(self) -> int:
        """That of the statistic."""
        return self.inner.n

    @property
    def value(self) -> float | None:
        """The function of the value; None where either is undefined or isn't finite."""
        value = self.inner.value
        mapped = math.nan if value is None else float(self.map(np.array([value]))[0])
        return mapped if math.isfinite(mapped) else None

    def replicates(self, weights: FloatArray) -> FloatArray:
        """See `Estimator.replicates`."""
        values = self.inner.replicates(weights)
        mapped = np.full_like(values, np.nan)
        defined = ~np.isnan(values)
        mapped[defined] = self.map(values[defined])
        return mapped


def chosen_clusters(
    clusters: tuple[str, ...], index: IndexArray, used: IndexArray
) -> tuple[tuple[str, ...], IndexArray]:
    """`group_clusters` of some units only, from that of all of them.

    Args:
        clusters, index: of all units.
        used: places of the units in question, rising.
    """
    if len(used) == len(index):
        return clusters, index
    places, chosen = np.unique(index[used], return_inverse=True)
    if len(places) == len(clusters):
        return clusters, index[used]
    return tuple(clusters[place] for place in places.tolist()), chosen.astype(np.intp)


@cache
def group_names(size: int) -> tuple[str, ...]:
    """Names of groups of clusters; nothing reads them but their number."""
    return tuple(f"group-{number}" for number in range(size))


def group_clusters(unit_clusters: Sequence[str]) -> tuple[tuple[str, ...], IndexArray]:
    """Who belongs to a cluster: sorted unique ids, and for each unit the index of its cluster.

    Every interval and every comparison asks this function, so that they agree on the independent units.
    """
    if all(map(operator.lt, unit_clusters, islice(unit_clusters, 1, None))):
        # Each unit is a cluster of its own, and in its place: what records in their usual order are, a million of them too.
        return tuple(unit_clusters), np.arange(len(unit_clusters), dtype=np.intp)
    clusters = tuple(sorted(set(unit_clusters)))
    position = {cluster: index for index, cluster in enumerate(clusters)}
    return clusters, np.fromiter(
        (position[cluster] for cluster in unit_clusters), dtype=np.intp, count=len(unit_clusters)
    )


def _sums(index: IndexArray, values: Sequence[float] | FloatArray, size: int) -> FloatArray:
    if size == len(index) and np.array_equal(index, np.arange(size)):
        # Each unit is a cluster of its own and in its place: columns are shared, not copied for every metric.
        return np.asarray(values, dtype=np.float64)
    return np.bincount(index, np.asarray(values, dtype=np.float64), size).astype(np.float64)
