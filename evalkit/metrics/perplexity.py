"""Perplexity of the whole, per word, per byte, by token class and view: sums over texts, divided once."""

import math

from evalkit.metrics.accumulators import exact_sum
from evalkit.metrics.context import MetricContext, ViewSetup
from evalkit.metrics.estimators import NamedEstimator
from evalkit.metrics.spec import VIEW_PREFIX
from evalkit.metrics.surprise import surprise_details
from evalkit.metrics.text_sums import TextSums, text_slices
from evalkit.runs.evidence import Evidence

_CJK = (
    "some texts hold Chinese or Japanese, which has no words without a declared segmenter (`words: {cjk: jieba}` "
    "segments Chinese, none segments Japanese); use perplexity/byte"
)


def estimators(evidence: Evidence, context: MetricContext) -> list[NamedEstimator]:
    """perplexity/*, bits_per_byte and rate/oov, over all texts and each asked slice."""
    return [
        named
        for sums in text_slices(evidence, context)
        for named in (*of_texts(sums), *(_of_view(sums, view) for view in context.views))
    ]


def of_texts(sums: TextSums) -> list[NamedEstimator]:
    """perplexity/*, bits_per_byte and rate/oov of some texts, views left out."""
    nll, tokens, size = sums.column("nll"), sums.column("scored"), sums.column("bytes_scored")
    found = [
        sums.ratio("perplexity/token", nll, tokens, "exp", details=_oddities(sums)),
        _per_word(sums),
        sums.ratio("perplexity/byte", nll, size, "exp"),
        sums.ratio("bits_per_byte", nll, size, scale=1 / math.log(2)),
    ]
    for name in sums.classes:
        class_nll, class_tokens = sums.class_column(name, "nll"), sums.class_column(name, "tokens")
        found.append(
            sums.ratio(f"perplexity/{name}", class_nll, class_tokens, "exp", details=_share(sums, name))
        )
    oov_nll, oov_tokens = sums.class_column("oov", "nll"), sums.class_column("oov", "tokens")
    found.append(sums.ratio("perplexity/without_oov", nll - oov_nll, tokens - oov_tokens, "exp"))
    found.append(sums.ratio("rate/oov", oov_tokens, tokens, share=True))
    return found


def _per_word(sums: TextSums) -> NamedEstimator:
    # A scored text has at least one word unless it has no word count at all (see evalkit.metrics.words).
    words = sums.column("words")
    if (words[sums.column("scored") > 0] == 0).any():
        return sums.null("perplexity/word", _CJK)
    return sums.ratio("perplexity/word", sums.column("nll"), words, "exp")


def _of_view(sums: TextSums, view: ViewSetup) -> NamedEstimator:
    nll, tokens = sums.view_column(view, "nll"), sums.view_column(view, "tokens")
    total = exact_sum(sums.column("scored"))
    details: dict[str, object] = {
        "token_share": exact_sum(tokens) / total if total else None,
        "overlapping": True,
    }
    return sums.ratio(VIEW_PREFIX + view.name, nll, tokens, "exp", details=details)


def _oddities(sums: TextSums) -> dict[str, object]:
    return surprise_details(sums.scored) if sums.slice is None else {}


def _share(sums: TextSums, name: str) -> dict[str, object]:
    total = exact_sum(sums.column("scored"))
    return {"token_share": exact_sum(sums.class_column(name, "tokens")) / total if total else None}
