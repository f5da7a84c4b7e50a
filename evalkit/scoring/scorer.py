"""Teacher-forced scoring of texts: every token and every byte exactly once, sums exact in any order."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from evalkit.backends.base import Backend, IntArray
from evalkit.metrics.token_classes import TokenClassifier
from evalkit.runs.records import SampleRecord, WindowRecord
from evalkit.scenario.schema import Window as WindowPolicy
from evalkit.scoring.blocks import content_blocks
from evalkit.scoring.engine import SequenceStats, WindowStats, score_sequences
from evalkit.scoring.text_records import TextJob, TokenRows, blank_record, finish_text
from evalkit.scoring.texts import TextItem, unscorable
from evalkit.scoring.windows import Window, plan_windows
from evalkit.tokenization import TextTokenizer


@dataclass(frozen=True)
class DoneTexts:
    """What an earlier attempt at the same texts left behind.

    Attributes:
        sample_ids: texts whose records are written.
        windows: scored windows of texts that aren't finished, by the text's digest.
    """

    sample_ids: frozenset[str] = frozenset()
    windows: Mapping[str, Sequence[WindowRecord]] = field(default_factory=dict)


def score_texts(
    items: Sequence[TextItem],
    tokenizer: TextTokenizer,
    backend: Backend,
    window: WindowPolicy,
    classifier: TokenClassifier,
    *,
    on_records: Callable[[Sequence[SampleRecord]], None],
    on_tokens: Callable[[TokenRows], None] | None = None,
    on_windows: Callable[[Sequence[WindowRecord]], None] | None = None,
    progress: Callable[[int], None] | None = None,
    done: DoneTexts | None = None,
    share: tuple[int, int] = (0, 1),
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
        on_tokens: called with the token statistics of each scored text, before its record.
        on_windows: called with the scored windows of texts that need more batches, so that a long text
            needn't begin anew.
        progress: called with the number of texts that are done since the last call.
        done: what needn't be done again; it changes no bit of the rest.
        share: number of this process and how many share the texts. Then each calls `on_windows` with every window
            that it scored and makes no record; with the windows of all in `done`, a call without `share` makes them.
    """
    done = done or DoneTexts()
    shared = share[1] > 1

    def finish(batch: Iterable[SampleRecord]) -> None:
        records = [record for record in batch if record.sample_id not in done.sample_ids]
        if records and not shared:
            on_records(records)
            if progress is not None:
                progress(len(records))

    by_digest: dict[str, list[TextItem]] = {}
    for item in sorted(items, key=lambda item: item.sample_id):
        by_digest.setdefault(item.digest, []).append(item)
    groups = [by_digest[digest] for digest in sorted(by_digest)]
    for block in content_blocks(groups, lambda group: group[0].digest, lambda group: len(group[0].text)):
        if all(_is_done(group, done) for group in block):
            continue
        refusals = [(item, unscorable(group[0].text)) for group in block for item in group]
        finish([blank_record(item, None, *refusal) for item, refusal in refusals if refusal is not None])
        groups_left = [group for group in block if unscorable(group[0].text) is None]
        encoded = tokenizer.encode_batch([group[0].text for group in groups_left])
        jobs = [TextJob(group, text) for group, text in zip(groups_left, encoded, strict=True)]
        scored = _score_block(jobs, tokenizer, backend, window, classifier, done, on_windows, share)
        for records, tokens in scored:
            if on_tokens is not None and not shared:
                for rows in tokens:
                    if rows.sample_id not in done.sample_ids:
                        on_tokens(rows)
            finish(records)


def _is_done(group: Sequence[TextItem], done: DoneTexts) -> bool:
    return all(item.sample_id in done.sample_ids for item in group)


def _score_block(
    jobs: Sequence[TextJob],
    tokenizer: TextTokenizer,
    backend: Backend,
    policy: WindowPolicy,
    classifier: TokenClassifier,
    done: DoneTexts,
    on_windows: Callable[[Sequence[WindowRecord]], None] | None,
    share: tuple[int, int],
) -> Iterator[tuple[list[SampleRecord], list[TokenRows]]]:
    prefix = tokenizer.prefix_token
    planned: list[TextJob] = []
    windows = []
    unasked: list[SampleRecord] = []
    for job in jobs:
        foreign = _foreign_token(job.encoded.ids, backend.vocab_size)
        parts = list(plan_windows(len(job.encoded.ids), policy, has_prefix=prefix is not None))
        if foreign is not None:
            reason = f"token id {foreign} is outside the model's vocabulary of {backend.vocab_size}"
            unasked += [blank_record(item, job.encoded, status="error", reason=reason) for item in job.items]
        elif not len(job.encoded.ids):
            reason = "the tokenizer gives no token for this text"
            unasked += [
                blank_record(item, job.encoded, status="skipped", reason=reason) for item in job.items
            ]
        elif parts:
            planned.append(job)
            windows.append(parts)
        else:
            # One token and no prefix: nothing can be asked, and nothing is lost.
            unasked += [
                replace(
                    blank_record(item, job.encoded), unconditioned=1, words=classifier.words.count(item.text)
                )
                for item in job.items
            ]
    yield unasked, []
    sequences = [job.encoded.ids for job in planned]

    def keep(parts: Sequence[WindowStats]) -> None:
        if on_windows is not None and parts:
            on_windows([_window_record(planned[part.sequence].items[0].digest, part) for part in parts])

    for finished in score_sequences(
        sequences,
        windows,
        backend,
        prefix_token=prefix,
        longest_row=policy.length,
        skip={index for index, job in enumerate(planned) if _is_done(job.items, done)},
        kept=_kept_windows(planned, windows, done),
        on_windows=keep,
        share=share,
    ):
        records: list[SampleRecord] = []
        tokens: list[TokenRows] = []
        for index, stats in finished:
            new_records, new_tokens = finish_text(
                planned[index], windows[index][0].first_scored, stats, classifier
            )
            records += new_records
            tokens += new_tokens
        yield records, tokens


def _kept_windows(
    planned: Sequence[TextJob], windows: Sequence[Sequence[Window]], done: DoneTexts
) -> Iterator[WindowStats]:
    for index, job in enumerate(planned):
        by_range = {(window.first_scored, window.end): window for window in windows[index]}
        for record in done.windows.get(job.items[0].digest, ()):
            window = by_range.pop((record.first_scored, record.end), None)
            if window is not None:
                stats = SequenceStats(
                    record.logprob,
                    record.entropy,
                    record.margin,
                    record.rank,
                    record.elapsed_ns,
                    cached_from=frozenset(() if record.cached_from is None else (record.cached_from,)),
                )
                yield WindowStats(index, window, stats)


def _window_record(digest: str, part: WindowStats) -> WindowRecord:
    stats, window = part.stats, part.window
    return WindowRecord(
        digest=digest,
        first_scored=window.first_scored,
        end=window.end,
        logprob=stats.logprob,
        entropy=stats.entropy,
        margin=stats.margin,
        rank=stats.rank,
        elapsed_ns=stats.elapsed_ns,
        cached_from=next(iter(stats.cached_from), None),
    )


def _foreign_token(ids: IntArray, vocab_size: int) -> int | None:
    return int(ids.max()) if len(ids) and ids.max() >= vocab_size else None
