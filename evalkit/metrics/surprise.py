"""What is odd about single texts: mean surprise far from the others', and first tokens that nothing predicts."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from evalkit.metrics.estimators import FloatArray
from evalkit.runs.records import SampleRecord
from evalkit.runs.samples import Samples

# Iglewicz & Hoaglin (1993, How to Detect and Handle Outliers): 0.6745 * (x - median) / MAD beyond 3.5.
_TO_SIGMA = 0.6745
_CUTOFF = 3.5
_MIN_TEXTS = 10
_LISTED = 20

# Less likely than a blind guess among 160,000 tokens: what follows a missing BOS looks like this (E14).
_EXTREME_NATS = 12.0
_MISSING_BOS = (
    "the first tokens of most texts surprise the model beyond any guess: it may need a BOS token that the "
    "tokenizer or `window.prefix` doesn't give it"
)


def surprise_details(scored: Sequence[SampleRecord]) -> dict[str, Any]:
    """Details that stand beside perplexity/token: `surprise_outliers`, `first_token` and, if need be, `warning`.

    Args:
        scored: texts with status ok.
    """
    texts = Samples.of(scored)
    asked = texts.where(texts.counts("scored") > 0)
    first = _first_tokens(asked)
    details: dict[str, Any] = {"surprise_outliers": _outliers(asked), "first_token": first}
    if 2 * first["extreme"] > first["texts"]:
        details["warning"] = _MISSING_BOS
    return details


def robust_scores(values: FloatArray) -> FloatArray | None:
    """Distance from the median in robust standard deviations; None where most values are equal.

    Args:
        values: shape (values,), not empty.
    """
    deviations = values - np.median(values)
    spread = float(np.median(np.abs(deviations)))
    return None if spread == 0 else _TO_SIGMA * deviations / spread


def _outliers(asked: Samples) -> dict[str, Any]:
    found: dict[str, Any] = {"cutoff": _CUTOFF, "count": None, "texts": []}
    if len(asked) < _MIN_TEXTS:
        return {**found, "reason": f"only {len(asked)} scored texts; {_MIN_TEXTS} are needed"}
    means = asked.nll / asked.counts("scored")
    scores = robust_scores(means)
    if scores is None:
        return {**found, "reason": "most texts have equal mean surprise: no spread to measure by"}
    far = np.flatnonzero(np.abs(scores) > _CUTOFF).tolist()
    names = asked.chosen(np.array(far, dtype=np.intp)).strings("sample_id")
    listed = sorted(zip(far, names, strict=True), key=lambda one: (-abs(scores[one[0]]), one[1]))[:_LISTED]
    found["count"] = len(far)
    found["texts"] = [
        {"sample_id": name, "mean": float(means[index]), "score": float(scores[index])}
        for index, name in listed
    ]
    return found


def _first_tokens(asked: Samples) -> dict[str, Any]:
    # A first token outside the most surprising ones of its text is below them, hence not extreme by itself.
    worst, first = asked.worst, asked.counts("bytes") - asked.counts("bytes_scored")
    extreme = (worst.starts == first[worst.rows]) & (-worst.logprobs > _EXTREME_NATS)
    return {"texts": len(asked), "extreme": len(np.unique(worst.rows[extreme])), "above_nats": _EXTREME_NATS}
