"""A validation set re-weighted to a target: weights, how far they reach, and when no number follows from them."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from evalkit.checks import number, whole
from evalkit.errors import InputError
from evalkit.metrics.estimators import FloatArray
from evalkit.resampling.bins import Bins, CellCounts, CodeArray, joint_shares, shift_p_value, total_variation
from evalkit.resampling.density_ratio import density_ratio
from evalkit.resampling.draw import draw
from evalkit.resampling.raking import rake

Method = Literal["raking", "classifier"]

# From this p-value on a difference between validation set and target may be chance: weights would only add noise.
SIGNIFICANCE = 0.01

# Bins of one feature, as in a scenario: more hold too few texts each, and a number of millions fills the memory.
MOST_BINS = 100

# Texts of either side, below which a classifier can't be fitted and calibrated on folds.
_LEAST_TO_LEARN = 20


@dataclass(frozen=True)
class ReweightingSettings:
    """How weights are made, and what they must reach.

    Attributes:
        method: raking on the marginals of the binned features, or a density-ratio classifier on the same bins.
        bins: a feature, of about equally many validation texts.
        cap: largest weight, as a multiple of the mean.
        min_effective: floor of the effective sample size, of texts and of clusters.
        max_uncovered: largest share of the target in bins without a validation text.
        max_distance: largest total variation that may be left on a feature.
    """

    method: Method = "raking"
    bins: int = 8
    cap: float = 10.0
    min_effective: float = 50.0
    max_uncovered: float = 0.1
    max_distance: float = 0.15

    def __post_init__(self) -> None:
        """Raises InputError where a value isn't possible."""
        if self.method not in ("raking", "classifier"):
            raise InputError(f"method: raking or classifier is needed (got {self.method!r})")
        if whole("bins", self.bins, least=2) > MOST_BINS:
            raise InputError(f"bins: at most {MOST_BINS} are possible (got {self.bins})")
        number("cap", self.cap, above=1, what="a number above 1, a multiple of the mean,")
        number(
            "min_effective",
            self.min_effective,
            above=math.nextafter(1, 0),
            what="a number of texts from 1 on",
        )
        for name in ("max_uncovered", "max_distance"):
            share = getattr(self, name)
            number(name, share, above=-math.ulp(0), below=1, what="a share from 0 to below 1")


@dataclass(frozen=True, eq=False)
class Reweighting:
    """Weights of a validation set.

    Attributes:
        weights: of the validation texts, mean 1, shape (texts,).
        effective_sample_size: of texts, (sum w)² / sum w² (Kish 1965).
        effective_clusters: the same of the clusters' weights.
        uncovered_mass: share of the target in joint bins that no validation text covers.
        marginal_before, marginal_after: total variation between validation set and target by feature, without and with
            the weights.
        joint_before, joint_after: the same over the joint bins.
        target_texts: in the target.
        shift_p_value: see `shift_p_value`; at `SIGNIFICANCE` or above every weight is 1.
        problem: why no number follows from the weights, else None.
    """

    weights: FloatArray
    effective_sample_size: float
    effective_clusters: float
    uncovered_mass: float
    marginal_before: dict[str, float]
    marginal_after: dict[str, float]
    joint_before: float
    joint_after: float
    target_texts: int
    shift_p_value: float
    problem: str | None = None

    def details(self) -> dict[str, Any]:
        """Everything but the weights, as JSON values."""
        value = asdict(self)
        del value["weights"], value["problem"]
        return value


def reweight(
    names: tuple[str, ...],
    validation: FloatArray,
    target: FloatArray,
    *,
    clusters: CodeArray | None = None,
    settings: ReweightingSettings | None = None,
    seed: int = 0,
    size: int | None = None,
) -> Reweighting:
    """Weights that make the validation set look like the target in its features.

    Where the two don't differ beyond chance every text keeps the weight 1. Equal arguments give equal weights, and the
    order of the target's texts doesn't matter.

    Args:
        names: of the features.
        validation: features of the validation texts, shape (texts, features).
        target: features of the target's texts, shape (target texts, features).
        clusters: index of each validation text's cluster, shape (texts,); None: each is its own.
        settings: see `ReweightingSettings`.
        seed: of folds and draw.
        size: draw so many validation texts by their weights (see `draw`), which then count as often as they were drawn;
            None: every text counts by its weight.

    Raises:
        InputError: no feature, or no validation text.
    """
    settings = settings or ReweightingSettings()
    bins = bins_of(names, validation, settings)
    counts = CellCounts.of(bins.codes(target))
    return reweight_to(bins, validation, counts, clusters=clusters, settings=settings, seed=seed, size=size)


def bins_of(names: tuple[str, ...], validation: FloatArray, settings: ReweightingSettings) -> Bins:
    """The bins in which a validation set is compared with any target.

    Raises:
        InputError: no feature, or no validation text.
    """
    if not names or not len(validation):
        raise InputError("resample: at least one feature and one validation text are needed")
    return Bins.of(names, validation, settings.bins)


def reweight_to(
    bins: Bins,
    validation: FloatArray,
    counts: CellCounts,
    *,
    clusters: CodeArray | None,
    settings: ReweightingSettings,
    seed: int,
    size: int | None,
) -> Reweighting:
    """The same from the target's counts, which is all that the weights depend on: not on the order of its texts.

    Args:
        bins: see `bins_of`.
        counts: of the target's texts in these bins.
        validation, clusters, settings, seed, size: see `reweight`.
    """
    if size is not None:
        whole("size", size, least=1)
    names = bins.names
    codes, target_codes = bins.codes(validation), counts.codes()
    cells, target_cells = bins.cells(codes), bins.cells(target_codes)
    if not len(target_codes):
        zeros = np.zeros(len(validation))
        unknown = dict.fromkeys(names, 1.0)
        return Reweighting(
            zeros, 0.0, 0.0, 1.0, unknown, unknown, 1.0, 1.0, 0, 1.0, "the target holds no text"
        )
    wanted = bins.marginals(target_codes)
    # What the method can take out decides what counts as a difference.
    chance = shift_p_value(codes, target_codes, bins.sizes, pairs=settings.method == "classifier")
    if chance >= SIGNIFICANCE:
        weights = np.ones(len(validation))
    elif settings.method == "raking":
        weights = rake(codes, wanted, settings.cap)
    elif min(len(validation), len(target_codes)) < _LEAST_TO_LEARN:
        weights = np.zeros(len(validation))
    else:
        weights = density_ratio(codes, target_codes, settings.cap, seed)
    if size is not None and weights.any():
        weights = draw(weights, size, seed) * (len(weights) / size)
    plain = np.ones(len(validation))
    used = weights if weights.any() else plain
    before, after = bins.marginals(codes), bins.marginals(codes, used)
    result = Reweighting(
        weights=weights,
        effective_sample_size=effective_size(weights),
        effective_clusters=effective_size(weights if clusters is None else cluster_totals(clusters, weights)),
        uncovered_mass=float(np.mean(~np.isin(target_cells, cells))),
        marginal_before=_distances(names, before, wanted),
        marginal_after=_distances(names, after, wanted),
        joint_before=total_variation(*joint_shares(cells, target_cells, plain)),
        joint_after=total_variation(*joint_shares(cells, target_cells, used)),
        target_texts=len(target_codes),
        shift_p_value=chance,
    )
    return replace(result, problem=_problem(result, settings))


def effective_size(weights: FloatArray) -> float:
    """(sum w)² / sum w²: how many equally weighted samples would be as good; 0 where all weights are 0."""
    squares = float(weights @ weights)
    return float(weights.sum()) ** 2 / squares if squares else 0.0


def cluster_totals(clusters: CodeArray, weights: FloatArray) -> FloatArray:
    """The weight of each cluster, shape (clusters,)."""
    return np.bincount(clusters, weights).astype(np.float64)


def _distances(names: tuple[str, ...], ours: list[FloatArray], theirs: list[FloatArray]) -> dict[str, float]:
    return {
        name: total_variation(first, second) for name, first, second in zip(names, ours, theirs, strict=True)
    }


def _problem(found: Reweighting, settings: ReweightingSettings) -> str | None:
    if found.uncovered_mass > settings.max_uncovered:
        return (
            f"{found.uncovered_mass:.1%} of the target lies where no validation text is, more than the "
            f"{settings.max_uncovered:.0%} allowed; add such texts to the validation set"
        )
    name, left = max(found.marginal_after.items(), key=lambda item: item[1])
    if left > settings.max_distance:
        return (
            f"the weights don't reach the target: a total variation of {left:.2f} is left on {name}, more than the "
            f"{settings.max_distance:g} allowed; add validation texts like those of the target"
        )
    effective = min(found.effective_sample_size, found.effective_clusters)
    if effective < settings.min_effective:
        return (
            f"the weights leave an effective sample size of {effective:.1f}, fewer than the {settings.min_effective:g} "
            "needed; add validation texts like those of the target"
        )
    if found.target_texts < found.effective_sample_size:
        return (
            f"the target holds {found.target_texts} texts, fewer than the effective sample size of "
            f"{found.effective_sample_size:.1f}, so that its own sampling error would count and isn't in the interval; "
            "give more of them, or draw fewer validation texts"
        )
    return None
