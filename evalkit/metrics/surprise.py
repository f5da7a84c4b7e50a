"""What is odd about single texts: mean surprise far from the others', and first tokens that nothing predicts."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from evalkit.metrics.estimators import FloatArray
from evalkit.runs.records import SampleRecord

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
    asked = [record for record in scored if record.scored > 0]
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


def _outliers(asked: Sequence[SampleRecord]) -> dict[str, Any]:
    found: dict[str, Any] = {"cutoff": _CUTOFF, "count": None, "texts": []}
    if len(asked) < _MIN_TEXTS:
        return {**found, "reason": f"only {len(asked)} scored texts; {_MIN_TEXTS} are needed"}
    means = np.array([record.nll / record.scored for record in asked], dtype=np.float64)
    scores = robust_scores(means)
    if scores is None:
        return {**found, "reason": "most texts have equal mean surprise: no spread to measure by"}
    far = [index for index in range(len(asked)) if abs(scores[index]) > _CUTOFF]
    far.sort(key=lambda index: (-abs(scores[index]), asked[index].sample_id))
    found["count"] = len(far)
    found["texts"] = [
        {"sample_id": asked[index].sample_id, "mean": float(means[index]), "score": float(scores[index])}
        for index in far[:_LISTED]
    ]
    return found


def _first_tokens(asked: Sequence[SampleRecord]) -> dict[str, Any]:
    # A first token outside the most surprising ones of its text is below them, hence not extreme by itself.
    extreme = sum(
        any(
            start == record.bytes - record.bytes_scored and -logprob > _EXTREME_NATS
            for start, _, logprob in record.worst
        )
        for record in asked
    )
    return {"texts": len(asked), "extreme": extreme, "above_nats": _EXTREME_NATS}
