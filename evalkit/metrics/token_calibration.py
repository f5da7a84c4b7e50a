"""Whether the model's confidence in its next token means what it says, over the scored tokens and by class.

`calibration/top1_ece`: expected calibration error of the top-1 confidence in bins of equally many tokens (Guo et al. 2017,
On Calibration of Modern Neural Networks, with bins of equal mass). `calibration/top1_brier`: mean squared difference of
top-1 confidence and outcome. It is the Brier score of the event "the most probable token comes", not that of the whole
distribution, which the stored statistics don't determine. See `evalkit.metrics.top1` for confidence and outcome.
"""

from collections.abc import Iterator

import numpy as np

from evalkit.errors import InputError
from evalkit.metrics.accumulators import FRACTION_BITS, UNIT, exact_sum
from evalkit.metrics.calibration import calibration_error
from evalkit.metrics.context import MetricContext
from evalkit.metrics.estimators import (
    FloatArray,
    IndexArray,
    NamedEstimator,
    RatioEstimator,
    chosen_clusters,
)
from evalkit.metrics.text_sums import TextSums, text_slices
from evalkit.metrics.top1 import PackedArray, confidences, from_text, outcomes
from evalkit.runs.evidence import Evidence

BINS = 10
_NOT_RECORDED = (
    "the evidence holds no rank and margin of the tokens, from which the top-1 probability follows"
)


def estimators(evidence: Evidence, context: MetricContext) -> list[NamedEstimator]:
    """calibration/top1_ece and /top1_brier, each also by class; over all texts and each asked slice."""
    return [
        named
        for sums in text_slices(evidence, context)
        for name in (None, *sums.classes)
        for named in _of_class(sums, name, context.confidence)
    ]


def _of_class(sums: TextSums, name: str | None, confidence: float) -> Iterator[NamedEstimator]:
    suffix = "" if name is None else f"/{name}"
    names = (f"calibration/top1_ece{suffix}", f"calibration/top1_brier{suffix}")
    tokens = sums.class_column(name, "tokens")
    packed, sizes = _joined(sums, name)
    reason = None
    if not np.array_equal(sizes, tokens):
        reason = _NOT_RECORDED
    elif not len(packed):
        reason = "no text was scored" if not sums.scored else "no token of the texts belongs to it"
    if reason is not None:
        yield from (sums.null(one, sums.absent.get(one, reason)) for one in names)
        return
    # A text without a token of the class says nothing: its cluster isn't one of this metric's.
    used = np.flatnonzero(sizes)
    clusters, index = chosen_clusters(*sums.columns.clusters, used)
    columns = np.repeat(index, sizes[used])
    said, came = confidences(packed), outcomes(packed)
    shown = {"mean_confidence": exact_sum(said) / len(said), "accuracy": exact_sum(came) / len(came)}
    error = calibration_error(
        names[0],
        (clusters, columns),
        said,
        came,
        bins=BINS,
        confidence=confidence,
        slice=sums.slice,
        coverage=sums.coverage,
    )
    error.details.update(shown)
    yield error
    yield NamedEstimator(
        names[1],
        estimator=RatioEstimator(
            clusters,
            _exact_sums(columns, (said - came) ** 2, len(clusters)),
            np.bincount(columns, minlength=len(clusters)).astype(np.float64),
        ),
        slice=sums.slice,
        coverage=sums.coverage,
        details={"of_the_base_rate": shown["accuracy"] * (1 - shown["accuracy"])},
    )


def _joined(sums: TextSums, name: str | None) -> tuple[PackedArray, IndexArray]:
    """The outcomes of one class (None: of all) over the texts, and how many each text has."""
    parts, sizes = [np.empty(0, dtype=np.uint32)], np.zeros(len(sums.scored), dtype=np.intp)
    for row, outcomes_of in sums.scored.outcomes():
        chosen = outcomes_of.values() if name is None else [outcomes_of.get(name, "")]
        try:
            own = [from_text(text) for text in chosen]
        except ValueError as error:
            raise InputError(
                f"evidence: text {sums.scored[row].sample_id!r}: top1_outcomes: {error}; the evidence is damaged"
            ) from None
        parts += own
        sizes[row] = sum(map(len, own))
    return np.concatenate(parts), sizes


def _exact_sums(
    columns: "np.ndarray[tuple[int], np.dtype[np.intp]]", values: FloatArray, size: int
) -> FloatArray:
    # As multiples of 2**-30, so that a sum is exact in any order.
    fixed = np.rint(values * 2.0**FRACTION_BITS) * UNIT
    return np.bincount(columns, fixed, size).astype(np.float64)
