"""Which kind of evidence a metric stands on: errors there are errors of the metric."""

# By the first part of the metric's name, or the first two. A metric may stand on several kinds.
_KINDS: dict[str, tuple[str, ...]] = {
    "perplexity": ("text",),
    "bits_per_byte": ("text",),
    "rate": ("text",),
    "logits": ("text",),
    "robustness": ("text",),
    "risk": ("risk",),
    "calibration": ("risk",),
    "calibration/top1_ece": ("text",),
    "calibration/top1_brier": ("text",),
    "dialogue": ("turn",),
    "latency": ("turn",),
    "cache": ("turn",),
}
_ALL = ("text", "risk", "turn")

# Statuses that count as errors. A model fault is a failure of the model and already counts in its metrics;
# a skipped sample lowers the coverage.
ERROR_STATUSES = {"text": "error", "risk": "error", "turn": "infrastructure_fault"}

NOUNS = {"text": "texts", "risk": "decisions", "turn": "dialogues"}


def evidence_kinds(metric: str) -> tuple[str, ...]:
    """The kinds of evidence (text, risk, turn) under a metric.

    Every kind where the name doesn't say (business/*, own/*), so that an error anywhere is seen.
    """
    first, _, rest = metric.partition("/")
    two = f"{first}/{rest.partition('/')[0]}"
    return _KINDS.get(two) or _KINDS.get(first, _ALL)
