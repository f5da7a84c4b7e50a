"""Token sequences in, statistics of every asked token out: windows are packed, scored, put together again."""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evalkit.backends.base import Backend, Float32Array, IntArray, RowStats
from evalkit.scoring.rows import Batch, Piece, Placement, build_batches, pack_rows, row_length_for
from evalkit.scoring.windows import Window

# Positions of a batch: enough to keep the matrix products busy (more was measured to gain nothing). A large vocabulary
# gets fewer, down to half, because its logits fill the memory: that was measured to be faster too.
_BATCH_POSITIONS, _BATCH_LOGITS = 1024, 1 << 24

_STATISTICS = ("logprob", "entropy", "margin", "rank")


@dataclass(frozen=True)
class SequenceStats:
    """Statistics of the asked tokens of one sequence, in order; each of shape (asked,), or None where the backend
    can't know it.

    Attributes:
        logprob, entropy, margin: float32, natural logarithms.
        rank: int32, 1 is best.
        elapsed_ns: this sequence's share of the backend's time.
        failed: why the backend gave no statistics; then the arrays mean nothing.
        cached_from: runs that computed some of it, where it was read from the result cache.
    """

    logprob: Float32Array
    entropy: Float32Array | None
    margin: Float32Array | None
    rank: IntArray | None
    elapsed_ns: int
    failed: str | None = None
    cached_from: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class WindowStats:
    """Statistics of one window of a sequence, kept while others of its windows are still to come.

    Attributes:
        sequence: index of the sequence.
        window: which of its windows.
        stats: of the tokens that the window newly scores.
    """

    sequence: int
    window: Window
    stats: SequenceStats


class _Partial:
    """A sequence whose windows are coming in."""

    def __init__(self, windows: Sequence[Window]) -> None:
        self.asked = sum(window.scored for window in windows)
        self.first = windows[0].first_scored
        self.missing = {window.first_scored for window in windows}
        # Arrays come with the first window: a block has many sequences that wait and few that are under way.
        self.arrays: dict[str, npt.NDArray[Any] | None] = {}
        self.elapsed_ns = 0
        self.failed: str | None = None
        self.cached_from: frozenset[str] = frozenset()
        self.only: SequenceStats | None = None

    def place(self, window: Window, stats: SequenceStats) -> None:
        self.missing.remove(window.first_scored)
        if window.scored == self.asked:
            # Nothing to put together: most texts are one window.
            self.only = stats
            return
        given = {name: getattr(stats, name) for name in _STATISTICS}
        if not self.arrays:
            self.arrays = {
                name: None if values is None else np.empty(self.asked, dtype=values.dtype)
                for name, values in given.items()
            }
        target = slice(window.first_scored - self.first, window.end - self.first)
        for name, whole in self.arrays.items():
            if whole is not None:
                whole[target] = given[name]
        self.elapsed_ns += stats.elapsed_ns
        self.failed = self.failed or stats.failed
        self.cached_from |= stats.cached_from

    def stats(self) -> SequenceStats:
        if self.only is not None:
            return self.only
        return SequenceStats(
            **self.arrays,  # type: ignore[arg-type]
            elapsed_ns=self.elapsed_ns,
            failed=self.failed,
            cached_from=self.cached_from,
        )


def score_sequences(
    sequences: Sequence[IntArray],
    windows: Sequence[Sequence[Window]],
    backend: Backend,
    *,
    prefix_token: int | None,
    longest_row: int,
    skip: Collection[int] = (),
    kept: Iterable[WindowStats] = (),
    on_windows: Callable[[Sequence[WindowStats]], None] | None = None,
    share: tuple[int, int] = (0, 1),
) -> Iterator[list[tuple[int, SequenceStats]]]:
    """Score sequences; the result doesn't depend on anything but the sequences in their order.

    Batches are planned over all sequences, those that are done included, and a batch is left out only if
    nothing in it is wanted: what runs again runs in the same company and gives the same bits.

    Args:
        sequences: token ids, int32; sorted by content by the caller.
        windows: of each sequence, in order, adjoining; at least one window each.
        backend: the model.
        prefix_token: fed where a window has its prefix.
        longest_row: no row has more positions; no window has more inputs.
        skip: indices of sequences whose statistics aren't wanted again.
        kept: windows that an earlier attempt scored.
        on_windows: takes, after each batch, the windows in it whose sequences are still incomplete; all of its
            windows where the work is shared.
        share: number of this process and how many share the work; each scores batches of its own, and sequences may
            stay incomplete.

    Yields:
        After each batch the sequences that it completed, as (index, statistics). Each sequence comes exactly
        once.
    """
    pieces = [Piece(index, window) for index, parts in enumerate(windows) for window in parts]
    open_sequences: dict[int, _Partial] = {
        index: _Partial(windows[index]) for index in range(len(windows)) if index not in skip
    }
    for part in kept:
        if part.sequence in open_sequences:
            open_sequences[part.sequence].place(part.window, part.stats)
    yield _completed(open_sequences, sorted(open_sequences))
    positions = min(_BATCH_POSITIONS, max(_BATCH_POSITIONS // 2, _BATCH_LOGITS // backend.vocab_size))
    least_rows = getattr(backend, "batch_rows", 1)
    batches = _batches(pieces, sequences, prefix_token, longest_row, positions, least_rows)
    own, processes = share
    wanted = (
        (batch, places)
        for number, batch in enumerate(batches)
        if number % processes == own
        and (places := [place for place in batch.placements if _is_missing(place.piece, open_sequences)])
    )
    for batch, placements, stats, elapsed in _scored(wanted, backend):
        parts = _cut(placements, batch, stats, elapsed)
        for part in parts:
            open_sequences[part.sequence].place(part.window, part.stats)
        finished = _completed(open_sequences, dict.fromkeys(part.sequence for part in parts))
        if on_windows is not None:
            # A window that failed isn't kept: an attempt that goes on later asks for it again.
            kept_parts = [part for part in parts if processes > 1 or part.sequence in open_sequences]
            on_windows([part for part in kept_parts if not part.stats.failed])
        yield finished
    if open_sequences and processes == 1:
        raise AssertionError(f"{len(open_sequences)} sequences were not scored whole")


_Places = Sequence[Placement]


def _scored(
    batches: Iterable[tuple[Batch, _Places]], backend: Backend
) -> Iterator[tuple[Batch, _Places, RowStats, int]]:
    """Each batch in order with its statistics, and the nanoseconds that they took.

    A backend that takes several calls at once scores the next batches while the caller makes records of the last one.
    """

    def score(batch: Batch) -> tuple[RowStats, int]:
        begin = time.perf_counter_ns()
        stats = backend.score(batch.token_ids, batch.targets, batch.positions, batch.segments)
        return stats, time.perf_counter_ns() - begin

    calls = getattr(backend, "parallel_calls", 0)
    if not calls:
        for batch, places in batches:
            yield batch, places, *score(batch)
        return
    with ThreadPoolExecutor(calls) as pool:
        waiting: deque[tuple[Batch, _Places, Future[tuple[RowStats, int]]]] = deque()
        try:
            for batch, places in batches:
                waiting.append((batch, places, pool.submit(score, batch)))
                if len(waiting) > calls:
                    first, first_places, future = waiting.popleft()
                    yield first, first_places, *future.result()
            while waiting:
                first, first_places, future = waiting.popleft()
                yield first, first_places, *future.result()
        finally:
            # Nobody wants the rest where the caller stops or a batch fails.
            for _, _, future in waiting:
                future.cancel()


def _is_missing(piece: Piece, open_sequences: dict[int, _Partial]) -> bool:
    partial = open_sequences.get(piece.sequence)
    return partial is not None and piece.window.first_scored in partial.missing


def _completed(
    open_sequences: dict[int, _Partial], candidates: Iterable[int]
) -> list[tuple[int, SequenceStats]]:
    """Take the complete ones of `candidates` out of the open sequences."""
    whole = [index for index in candidates if not open_sequences[index].missing]
    return [(index, open_sequences.pop(index).stats()) for index in whole]


def _batches(
    pieces: Sequence[Piece],
    sequences: Sequence[IntArray],
    prefix_token: int | None,
    longest_row: int,
    positions: int,
    least_rows: int,
) -> Iterator[Batch]:
    by_length: dict[int, list[Piece]] = {}
    for piece in pieces:
        by_length.setdefault(row_length_for(piece.window.inputs, longest_row), []).append(piece)
    for row_length in sorted(by_length):
        rows = pack_rows(by_length[row_length], row_length)
        # Equal batches of no more rows than fit: few empty rows in the last one.
        most = max(least_rows, positions // row_length)
        batch_rows = -(-len(rows) // -(-len(rows) // most))
        yield from build_batches(
            rows, sequences, row_length=row_length, batch_rows=batch_rows, prefix_token=prefix_token
        )


def _cut(
    placements: Sequence[Placement], batch: Batch, stats: RowStats, elapsed_ns: int
) -> list[WindowStats]:
    """The statistics of each placed window, with its share of the time."""
    fed = sum(placement.piece.window.inputs for placement in placements)
    cached_from = frozenset(() if stats.cached_from is None else (stats.cached_from,))
    parts = []
    for placement in placements:
        window = placement.piece.window
        stop = placement.column + window.inputs
        source = (placement.row, slice(stop - window.scored, stop))
        segment = int(batch.segments[placement.row, placement.column])
        own = SequenceStats(
            stats.logprob[source],
            None if stats.entropy is None else stats.entropy[source],
            None if stats.margin is None else stats.margin[source],
            None if stats.rank is None else stats.rank[source],
            elapsed_ns * window.inputs // fed,
            stats.failed.get((placement.row, segment)),
            cached_from,
        )
        parts.append(WindowStats(placement.piece.sequence, window, own))
    return parts


def first_undefined(stats: SequenceStats) -> tuple[int, str] | None:
    """Index and name of the first statistic that is NaN or infinite, or None."""
    named: tuple[tuple[str, npt.NDArray[np.float32] | None], ...] = (
        ("log-probability", stats.logprob),
        ("entropy", stats.entropy),
        ("margin", stats.margin),
    )
    for name, values in named:
        if values is None:
            continue
        finite = np.isfinite(values)
        if not finite.all():
            return int(np.argmin(finite)), name
    return None
