"""Teacher-forced scoring of texts: every token and every byte exactly once, sums exact in any order."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from evalkit.backends.base import Backend, Float32Array, IntArray
from evalkit.metrics.accumulators import class_sums, from_fixed, to_fixed
from evalkit.metrics.registry import TOKEN_CLASSES
from evalkit.metrics.token_classes import TokenClassifier
from evalkit.metrics.words import count_words
from evalkit.runs.records import ClassSums, SampleRecord, SampleStatus
from evalkit.scenario.schema import Window as WindowPolicy
from evalkit.scoring.engine import SequenceStats, first_undefined, score_sequences
from evalkit.scoring.jsonl import is_unicode
from evalkit.scoring.texts import TextItem, unscorable
from evalkit.scoring.windows import plan_windows
from evalkit.tokenization import EncodedText, TextTokenizer

# Texts are encoded, packed and scored a block at a time, so that memory doesn't grow with the corpus.
_BLOCK_TEXTS = 4096
_BLOCK_BYTES = 8 << 20
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
class _Job:
    """A text that is to be scored, for every item that has it."""

    items: list[TextItem]
    encoded: EncodedText

    @property
    def text(self) -> str:
        return self.items[0].text


def score_texts(
    items: Sequence[TextItem],
    tokenizer: TextTokenizer,
    backend: Backend,
    window: WindowPolicy,
    classifier: TokenClassifier,
    *,
    on_records: Callable[[Sequence[SampleRecord]], None],
    on_tokens: Callable[[TokenRows], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Score texts; one record each, whatever becomes of it.

    Equal texts are scored once. The work is planned from sorted content digests: the order of `items` changes
    no bit.

    Args:
        items: unique ids.
        tokenizer, backend: of one model.
        window: see `plan_windows`; its length is at most the backend's max_length.
        classifier: the token classes.
        on_records: called with the finished records of each batch, in a fixed order.
        on_tokens: called with the token statistics of each scored text.
        progress: called with the number of texts that are done since the last call.
    """

    def finish(records: list[SampleRecord]) -> None:
        if records:
            on_records(records)
            if progress is not None:
                progress(len(records))

    by_digest: dict[str, list[TextItem]] = {}
    for item in sorted(items, key=lambda item: item.sample_id):
        by_digest.setdefault(item.digest, []).append(item)
    groups = [by_digest[digest] for digest in sorted(by_digest)]
    for block in _blocks(groups):
        refused = [group for group in block if unscorable(group[0].text)]
        finish([_refused_record(item) for group in refused for item in group])
        groups_left = [group for group in block if not unscorable(group[0].text)]
        encoded = tokenizer.encode_batch([group[0].text for group in groups_left])
        jobs = [_Job(group, text) for group, text in zip(groups_left, encoded, strict=True)]
        for records, tokens in _score_block(jobs, tokenizer, backend, window, classifier):
            if on_tokens is not None:
                for rows in tokens:
                    on_tokens(rows)
            finish(records)


def _blocks(groups: Sequence[list[TextItem]]) -> Iterator[list[list[TextItem]]]:
    block: list[list[TextItem]] = []
    size = 0
    for group in groups:
        block.append(group)
        size += len(group[0].text)
        if len(block) == _BLOCK_TEXTS or size >= _BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


def _score_block(
    jobs: Sequence[_Job],
    tokenizer: TextTokenizer,
    backend: Backend,
    policy: WindowPolicy,
    classifier: TokenClassifier,
) -> Iterator[tuple[list[SampleRecord], list[TokenRows]]]:
    prefix = tokenizer.prefix_token
    planned: list[_Job] = []
    windows = []
    unasked: list[SampleRecord] = []
    for job in jobs:
        foreign = _foreign_token(job.encoded.ids, backend.vocab_size)
        parts = list(plan_windows(len(job.encoded.ids), policy, has_prefix=prefix is not None))
        if foreign is not None:
            reason = f"token id {foreign} is outside the model's vocabulary of {backend.vocab_size}"
            unasked += [_record(item, job.encoded, status="error", reason=reason) for item in job.items]
        elif not len(job.encoded.ids):
            reason = "the tokenizer gives no token for this text"
            unasked += [_record(item, job.encoded, status="skipped", reason=reason) for item in job.items]
        elif parts:
            planned.append(job)
            windows.append(parts)
        else:
            # One token and no prefix: nothing can be asked, and nothing is lost.
            unasked += [
                replace(_record(item, job.encoded), unconditioned=1, words=count_words(item.text))
                for item in job.items
            ]
    yield unasked, []
    sequences = [job.encoded.ids for job in planned]
    for finished in score_sequences(
        sequences, windows, backend, prefix_token=prefix, longest_row=policy.length
    ):
        records: list[SampleRecord] = []
        tokens: list[TokenRows] = []
        for index, stats in finished:
            new_records, new_tokens = _finish_text(
                planned[index], windows[index][0].first_scored, stats, classifier
            )
            records += new_records
            tokens += new_tokens
        yield records, tokens


def _finish_text(
    job: _Job, first: int, stats: SequenceStats, classifier: TokenClassifier
) -> tuple[list[SampleRecord], list[TokenRows]]:
    encoded = job.encoded
    undefined = first_undefined(stats)
    if undefined is not None:
        index, name = undefined
        start = int(encoded.starts[first + index])
        reason = f"the model's {name} of token {first + index} (byte {start}) is not a finite number"
        return [_record(item, encoded, status="error", reason=reason) for item in job.items], []
    classes = classifier.classify(job.text, encoded)[first:]
    starts, ends = encoded.starts[first:], encoded.ends[first:]
    try:
        by_class = _sums(stats, classes, ends - starts)
    except OverflowError as error:
        return [_record(item, encoded, status="error", reason=str(error)) for item in job.items], []
    scored_bytes = int(encoded.size_bytes - starts[0])
    scored_text = job.text if first == 0 else job.text.encode()[starts[0] :].decode(errors="replace")
    nll = from_fixed(int(to_fixed(-stats.logprob).sum()))
    _check_conservation(by_class, len(stats.logprob), nll, scored_bytes)
    shared = replace(
        _record(job.items[0], encoded),
        scored=len(stats.logprob),
        unconditioned=first,
        bytes_scored=scored_bytes,
        words=0 if count_words(job.text) == 0 else count_words(scored_text),
        nll=nll,
        classes=by_class,
        worst=_worst(stats.logprob, starts, ends),
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
    stats: SequenceStats, classes: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> dict[str, ClassSums]:
    real = to_fixed(np.stack([-stats.logprob, stats.entropy, stats.margin]))
    whole = np.stack(
        [np.ones_like(classes), stats.rank.astype(np.int64), stats.rank <= 1, stats.rank <= 5, sizes]
    ).astype(np.int64)
    fixed = class_sums(np.concatenate([real, whole]), classes, len(TOKEN_CLASSES))
    sums = {}
    for code, name in enumerate(TOKEN_CLASSES):
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


def _foreign_token(ids: IntArray, vocab_size: int) -> int | None:
    return int(ids.max()) if len(ids) and ids.max() >= vocab_size else None


def _refused_record(item: TextItem) -> SampleRecord:
    found = unscorable(item.text)
    status, reason = found if found is not None else ("error", "the text was refused")
    return SampleRecord(
        sample_id=item.sample_id,
        kind="text",
        digest=item.digest,
        cluster=item.cluster,
        status=status,
        reason=reason,
        bytes=len(item.text.encode("utf-8", "surrogatepass")),
        tags=list(item.tags),
        # A text that isn't Unicode can't be written down again.
        text=item.text if is_unicode(item.text) else None,
    )


def _record(
    item: TextItem, encoded: EncodedText, status: SampleStatus = "ok", reason: str | None = None
) -> SampleRecord:
    return SampleRecord(
        sample_id=item.sample_id,
        kind="text",
        digest=item.digest,
        cluster=item.cluster,
        status=status,
        reason=reason,
        tokens=len(encoded.ids),
        bytes=encoded.size_bytes,
        tags=list(item.tags),
        text=item.text,
    )
