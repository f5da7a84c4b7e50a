"""Statistics of the next-token distribution, averaged over the scored tokens, of all and by class."""

from evalkit.metrics.accumulators import exact_sum
from evalkit.metrics.context import MetricContext
from evalkit.metrics.estimators import NamedEstimator
from evalkit.metrics.text_columns import SumField
from evalkit.metrics.text_sums import TextSums, text_slices
from evalkit.runs.evidence import Evidence

_NOT_GIVEN = "the backend gives no {} of tokens: an endpoint gives log-probabilities alone"

_MEANS: tuple[tuple[str, SumField], ...] = (
    ("logits/entropy", "entropy"),
    ("logits/margin", "margin"),
    ("logits/rank", "rank"),
)


def estimators(evidence: Evidence, context: MetricContext) -> list[NamedEstimator]:
    """logits/entropy, /margin, /rank and /top_k_accuracy, each also by class; over all texts and each asked
    slice.

    The value of top_k_accuracy is that of k = 1; the one of k = 5 stands beside it as `top_5`.
    """
    return [
        named
        for sums in text_slices(evidence, context)
        for name in (None, *sums.classes)
        for named in of_tokens(sums, name)
    ]


def of_tokens(sums: TextSums, name: str | None) -> list[NamedEstimator]:
    """logits/* of the tokens of one class, of all where it is None."""
    suffix = "" if name is None else f"/{name}"
    tokens = sums.class_column(name, "tokens")
    found = [
        sums.null(f"{stem}{suffix}", _NOT_GIVEN.format(field))
        if sums.lacks(field)
        else sums.ratio(f"{stem}{suffix}", sums.class_column(name, field), tokens)
        for stem, field in _MEANS
    ]
    if sums.lacks("rank"):
        found.append(sums.null(f"logits/top_k_accuracy{suffix}", _NOT_GIVEN.format("rank")))
        return found
    total = exact_sum(tokens)
    top5 = exact_sum(sums.class_column(name, "top5")) / total if total else None
    top1 = sums.class_column(name, "top1")
    found.append(
        sums.ratio(f"logits/top_k_accuracy{suffix}", top1, tokens, share=True, details={"top_5": top5})
    )
    return found
