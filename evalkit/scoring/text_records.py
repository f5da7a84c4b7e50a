"""From the statistics of a text's tokens to its record: class sums, conservation, the worst tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from evalkit.backends.base import Float32Array, IntArray
from evalkit.metrics.accumulators import class_sums, from_fixed, to_fixed
from evalkit.metrics.registry import TOKEN_CLASSES
from evalkit.metrics.token_classes import TokenClassifier
from evalkit.metrics.words import count_words
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
        token_class: index into `TOKEN_CLASSES`.
        logprob, entropy, margin, rank: natural logarithms; rank 1 is best.
    """

    sample_id: str
    index: npt.NDArray[np.int64]
    token_id: IntArray
    start_byte: npt.NDArray[np.int64]
    end_byte: npt.NDArray[np.int64]
    token_class: npt.NDArray[np.int64]
    logprob: Float32Array
    entropy: Float32Array
    margin: Float32Array
    rank: IntArray


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
        by_class = _sums(stats, classes, ends - starts, TOKEN_CLASSES)
        by_view = {
            name: sums
            for name, members in views.items()
            for sums in _sums(stats, members[first:] - 1, ends - starts, (name,)).values()
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
        words=0 if count_words(job.text) == 0 else count_words(scored_text),
        nll=nll,
        classes=by_class,
        views=by_view,
        worst=_worst(stats.logprob, starts, ends),
        from_cache=bool(stats.cached_from),
        cache_runs=sorted(stats.cached_from),
        elapsed_ns=stats.elapsed_ns // len(job.items),
    )
    records = [
        replace(shared, sample_id=item.sample_id, cluster=item.cluster, tags=list(item.tags))
        for item in job.items
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


def _sums(
    stats: SequenceStats,
    classes: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    names: Sequence[str],
) -> dict[str, ClassSums]:
    """Sums by name; `classes` holds indices into `names`, and -1 for a token of none."""
    real = to_fixed(np.stack([-stats.logprob, stats.entropy, stats.margin]))
    whole = np.stack(
        [np.ones_like(classes), stats.rank.astype(np.int64), stats.rank <= 1, stats.rank <= 5, sizes]
    ).astype(np.int64)
    fixed = class_sums(np.concatenate([real, whole]), classes, len(names))
    sums = {}
    for code, name in enumerate(names):
        nll, entropy, margin, tokens, rank, top1, top5, size = (int(total) for total in fixed[:, code])
        if tokens:
            sums[name] = ClassSums(
                tokens=tokens,
                nll=from_fixed(nll),
                entropy=from_fixed(entropy),
                margin=from_fixed(margin),
                rank=float(rank),
                top1=top1,
                top5=top5,
                bytes=size,
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
    head = sample_head("text", item, item.text, status, reason)
    return replace(head, tokens=0 if encoded is None else len(encoded.ids), tags=list(item.tags))
