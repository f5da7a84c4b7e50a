"""From the statistics of a text's tokens to its record: class sums, conservation, the worst tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from evalkit.backends.base import Float32Array, IntArray
from evalkit.metrics.accumulators import class_sums, from_fixed, to_fixed
from evalkit.metrics.token_classes import TokenClassifier
from evalkit.metrics.top1 import to_text, top1_outcomes
from evalkit.metrics.words import WordRule
from evalkit.runs.records import ClassSums, SampleRecord, SampleStatus
from evalkit.scoring.engine import SequenceStats, first_undefined
from evalkit.scoring.sample_head import sample_head
from evalkit.scoring.texts import TextItem
from evalkit.tokenization import EncodedText

_WORST_TOKENS = 8


@dataclass(frozen=True, eq=False)
class TokenRows:
    """Statistics of the scored tokens of one text, each of shape (scored,): rows of tokens.parquet.

    Attributes:
        sample_id: the text.
        index: of the token in the text; token_id, start_byte and end_byte say what it is.
        token_class: index into the classifier's `names`.
        logprob, entropy, margin, rank: natural logarithms; rank 1 is best; None where the backend can't know it.
    """

    sample_id: str
    index: npt.NDArray[np.int64]
    token_id: IntArray
    start_byte: npt.NDArray[np.int64]
    end_byte: npt.NDArray[np.int64]
    token_class: npt.NDArray[np.int64]
    logprob: Float32Array
    entropy: Float32Array | None
    margin: Float32Array | None
    rank: IntArray | None


@dataclass(frozen=True)
class TextJob:
    """A text that is to be scored, for every item that has it."""

    items: list[TextItem]
    encoded: EncodedText

    @property
    def text(self) -> str:
        """What the items share."""
        return self.items[0].text


def finish_text(
    job: TextJob, first: int, stats: SequenceStats, classifier: TokenClassifier
) -> tuple[list[SampleRecord], list[TokenRows]]:
    """Records and token rows of a scored text, one of each an item.

    Args:
        job: the text.
        first: its first scored token.
        stats: of the tokens from there on.
        classifier: the token classes.
    """
    encoded = job.encoded
    if stats.failed is not None:
        return [blank_record(item, encoded, status="error", reason=stats.failed) for item in job.items], []
    undefined = first_undefined(stats)
    if undefined is not None:
        index, name = undefined
        start = int(encoded.starts[first + index])
        reason = f"the model's {name} of token {first + index} (byte {start}) is not a finite number"
        return [blank_record(item, encoded, status="error", reason=reason) for item in job.items], []
    classes = classifier.classify(job.text, encoded)[first:]
    starts, ends = encoded.starts[first:], encoded.ends[first:]
    views = classifier.view_members(job.text, encoded)
    try:
        by_class = token_sums(stats, classes, ends - starts, classifier.names)
        by_view = {
            name: sums
            for name, members in views.items()
            for sums in token_sums(stats, members[first:] - 1, ends - starts, (name,)).values()
        }
    except OverflowError as error:
        return [blank_record(item, encoded, status="error", reason=str(error)) for item in job.items], []
    scored_bytes = int(encoded.size_bytes - starts[0])
    scored_text = job.text if first == 0 else job.text.encode()[starts[0] :].decode(errors="replace")
    nll = from_fixed(int(to_fixed(-stats.logprob).sum()))
    _check_conservation(by_class, len(stats.logprob), nll, scored_bytes)
    shared = replace(
        blank_record(job.items[0], encoded),
        scored=len(stats.logprob),
        unconditioned=first,
        bytes_scored=scored_bytes,
        words=_words(job.text, scored_text, classifier.words),
        nll=nll,
        classes=by_class,
        top1_outcomes=_top1(stats, classes, classifier.names),
        views=by_view,
        worst=_worst(stats.logprob, starts, ends),
        from_cache=bool(stats.cached_from),
        cache_runs=sorted(stats.cached_from),
        elapsed_ns=stats.elapsed_ns // len(job.items),
    )
    records = [shared] + [
        replace(shared, sample_id=item.sample_id, cluster=item.cluster, tags=list(item.tags))
        for item in job.items[1:]
    ]
    tokens = [
        TokenRows(
            item.sample_id,
            np.arange(first, len(encoded.ids)),
            encoded.ids[first:],
            starts,
            ends,
            classes,
            stats.logprob,
            stats.entropy,
            stats.margin,
            stats.rank,
        )
        for item in job.items
    ]
    return records, tokens


def _top1(stats: SequenceStats, classes: npt.NDArray[np.int64], names: Sequence[str]) -> dict[str, str]:
    if stats.margin is None or stats.rank is None:
        return {}
    packed = top1_outcomes(stats.logprob, stats.margin, stats.rank)
    present = np.flatnonzero(np.bincount(classes)).tolist()
    return {names[code]: to_text(packed[classes == code]) for code in present}


def _words(text: str, scored: str, words: WordRule) -> int:
    # Of the scored part, which mostly is the text itself; what has no word count as a whole has none in part.
    total = words.count(text)
    return total if total == 0 or scored is text else words.count(scored)


def token_sums(
    stats: SequenceStats,
    classes: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    names: Sequence[str],
) -> dict[str, ClassSums]:
    """Sums by name; `classes` holds indices into `names`, and -1 for a token of none."""
    real = {"nll": -stats.logprob, "entropy": stats.entropy, "margin": stats.margin}
    columns = {name: to_fixed(values) for name, values in real.items() if values is not None}
    columns |= {"tokens": np.ones_like(classes), "bytes": sizes}
    if stats.rank is not None:
        rank = stats.rank.astype(np.int64)
        columns |= {"rank": rank, "top1": (rank <= 1).astype(np.int64), "top5": (rank <= 5).astype(np.int64)}
    totals = class_sums(np.stack(list(columns.values())), classes, len(names))
    sums = {}
    for name, of_name in zip(names, totals.T.tolist(), strict=True):
        of_class = dict(zip(columns, of_name, strict=True))
        if of_class["tokens"]:
            sums[name] = ClassSums(
                tokens=of_class["tokens"],
                nll=from_fixed(of_class["nll"]),
                entropy=from_fixed(of_class["entropy"]) if "entropy" in of_class else None,
                margin=from_fixed(of_class["margin"]) if "margin" in of_class else None,
                rank=float(of_class["rank"]) if "rank" in of_class else None,
                top1=of_class.get("top1"),
                top5=of_class.get("top5"),
                bytes=of_class["bytes"],
            )
    return sums


def _check_conservation(by_class: dict[str, ClassSums], tokens: int, nll: float, size: int) -> None:
    sums = by_class.values()
    # Fixed-point sums below 2**23 add exactly in float64, so equality is meant literally.
    if sum(part.tokens for part in sums) != tokens or sum(part.nll for part in sums) != nll:
        raise AssertionError("the class sums differ from the total")
    if sum(part.bytes for part in sums) != size:
        raise AssertionError("the scored bytes differ from the text's")


def _worst(
    logprob: Float32Array, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> list[tuple[int, int, float]]:
    order = np.argsort(logprob, kind="stable")[:_WORST_TOKENS]
    return [(int(starts[index]), int(ends[index]), float(logprob[index])) for index in order]


def blank_record(
    item: TextItem, encoded: EncodedText | None, status: SampleStatus = "ok", reason: str | None = None
) -> SampleRecord:
    """The record of a text before any sum; `encoded` is None where it can't be encoded."""
    tokens = 0 if encoded is None else len(encoded.ids)
    return sample_head("text", item, item.text, status, reason, tokens=tokens, tags=item.tags)
