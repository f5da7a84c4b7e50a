"""Token sequences in, statistics of every asked token out: windows are packed, scored, put together again."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evalkit.backends.base import Backend, Float32Array, IntArray, RowStats
from evalkit.scoring.rows import Batch, Piece, build_batches, pack_rows, row_length_for
from evalkit.scoring.windows import Window

# Positions of a batch: enough to keep the matrix products busy (more was measured to gain nothing), few
# enough to keep the logits of a large vocabulary small.
_BATCH_POSITIONS = 1024


@dataclass(frozen=True)
class SequenceStats:
    """Statistics of the asked tokens of one sequence, in order; each of shape (asked,).

    Attributes:
        logprob, entropy, margin: float32, natural logarithms.
        rank: int32, 1 is best.
        elapsed_ns: this sequence's share of the backend's time.
    """

    logprob: Float32Array
    entropy: Float32Array
    margin: Float32Array
    rank: IntArray
    elapsed_ns: int


class _Partial:
    """A sequence whose windows are coming in."""

    def __init__(self, windows: Sequence[Window]) -> None:
        asked = sum(window.scored for window in windows)
        self.first = windows[0].first_scored
        self.missing = len(windows)
        self.real = np.empty((3, asked), dtype=np.float32)
        self.rank = np.empty(asked, dtype=np.int32)
        self.elapsed_ns = 0

    def stats(self) -> SequenceStats:
        return SequenceStats(self.real[0], self.real[1], self.real[2], self.rank, self.elapsed_ns)


def score_sequences(
    sequences: Sequence[IntArray],
    windows: Sequence[Sequence[Window]],
    backend: Backend,
    *,
    prefix_token: int | None,
    longest_row: int,
) -> Iterator[list[tuple[int, SequenceStats]]]:
    """Score sequences; the result doesn't depend on anything but the sequences in their order.

    Args:
        sequences: token ids, int32; sorted by content by the caller.
        windows: of each sequence, in order, adjoining; at least one window each.
        backend: the model.
        prefix_token: fed where a window has its prefix.
        longest_row: no row has more positions; no window has more inputs.

    Yields:
        After each batch the sequences that it completed, as (index, statistics). Each sequence comes exactly
        once.
    """
    pieces = [Piece(index, window) for index, parts in enumerate(windows) for window in parts]
    open_sequences: dict[int, _Partial] = {}
    for batch in _batches(pieces, sequences, prefix_token, longest_row):
        begin = time.perf_counter_ns()
        stats = backend.score(batch.token_ids, batch.targets, batch.positions, batch.segments)
        elapsed = time.perf_counter_ns() - begin
        yield _collect(batch, stats, elapsed, windows, open_sequences)
    if open_sequences:
        raise AssertionError(f"{len(open_sequences)} sequences were not scored whole")


def _batches(
    pieces: Sequence[Piece], sequences: Sequence[IntArray], prefix_token: int | None, longest_row: int
) -> Iterator[Batch]:
    by_length: dict[int, list[Piece]] = {}
    for piece in pieces:
        by_length.setdefault(row_length_for(piece.window.inputs, longest_row), []).append(piece)
    for row_length in sorted(by_length):
        rows = pack_rows(by_length[row_length], row_length)
        batch_rows = max(1, min(_BATCH_POSITIONS // row_length, len(rows)))
        yield from build_batches(
            rows, sequences, row_length=row_length, batch_rows=batch_rows, prefix_token=prefix_token
        )


def _collect(
    batch: Batch,
    stats: RowStats,
    elapsed_ns: int,
    windows: Sequence[Sequence[Window]],
    open_sequences: dict[int, _Partial],
) -> list[tuple[int, SequenceStats]]:
    fed = sum(placement.piece.window.inputs for placement in batch.placements)
    finished = []
    for placement in batch.placements:
        index, window = placement.piece.sequence, placement.piece.window
        partial = open_sequences.get(index)
        if partial is None:
            partial = open_sequences[index] = _Partial(windows[index])
        stop = placement.column + window.inputs
        source = (placement.row, slice(stop - window.scored, stop))
        target = slice(window.first_scored - partial.first, window.end - partial.first)
        partial.real[0, target] = stats.logprob[source]
        partial.real[1, target] = stats.entropy[source]
        partial.real[2, target] = stats.margin[source]
        partial.rank[target] = stats.rank[source]
        partial.elapsed_ns += elapsed_ns * window.inputs // fed
        partial.missing -= 1
        if partial.missing == 0:
            finished.append((index, open_sequences.pop(index).stats()))
    return finished


def first_undefined(stats: SequenceStats) -> tuple[int, str] | None:
    """Index and name of the first statistic that is NaN or infinite, or None."""
    named: tuple[tuple[str, npt.NDArray[np.float32]], ...] = (
        ("log-probability", stats.logprob),
        ("entropy", stats.entropy),
        ("margin", stats.margin),
    )
    for name, values in named:
        finite = np.isfinite(values)
        if not finite.all():
            return int(np.argmin(finite)), name
    return None
