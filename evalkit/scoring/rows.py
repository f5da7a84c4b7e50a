"""The packing plan: windows of several texts side by side in rows of a few fixed shapes.

A row is block-diagonal: each window is a segment of its own, with positions from 0, and sees nothing of its
neighbours. Rows are planned from the content digests, so that the plan doesn't depend on the order of the
texts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evalkit.scoring.windows import Window

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Piece:
    """One window of one sequence, the unit that is packed.

    Attributes:
        sequence: index of its token sequence; sequences are sorted by digest.
        window: what is fed and scored.
    """

    sequence: int
    window: Window


@dataclass(frozen=True)
class Placement:
    """Where a piece lies in a batch: its input positions are [column, column + window.inputs) of `row`."""

    piece: Piece
    row: int
    column: int


@dataclass(frozen=True)
class Batch:
    """One call of the backend.

    Attributes:
        token_ids, targets, positions, segments: int32, shape (rows, row length); see `Backend.score`.
        placements: the pieces in it.
    """

    token_ids: IntArray
    targets: IntArray
    positions: IntArray
    segments: IntArray
    placements: tuple[Placement, ...]


# Attention costs grow with the row, so short windows get short rows: the next power of two that holds two of
# them. Rows of 64 were measured to be no faster: fewer texts fit without a gap.
_SHORTEST_ROW = 128


def row_length_for(inputs: int, longest: int) -> int:
    """Length of the rows that a window with `inputs` positions goes into.

    Args:
        inputs: of the window, at most `longest`.
        longest: row length that no row exceeds.
    """
    return min(longest, max(_SHORTEST_ROW, 1 << (2 * inputs - 1).bit_length()))


def pack_rows(pieces: Sequence[Piece], row_length: int) -> list[list[Piece]]:
    """Assign pieces to rows: longest first, each into the fullest row that still has room (best fit).

    Args:
        pieces: each at most `row_length` input positions; ties keep their order.
        row_length: positions of a row.

    Returns:
        The pieces of each row, in order. Rows are ordered by their first piece, and together they hold each
        piece exactly once.
    """
    rows: list[list[Piece]] = []
    open_rows: list[list[int]] = [[] for _ in range(row_length + 1)]
    # Bit r is set where some row has exactly r positions left, so that the best fit is one bit operation
    # away.
    occupied = 0
    for piece in sorted(pieces, key=lambda item: -item.window.inputs):
        size = piece.window.inputs
        fitting = occupied >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            row = open_rows[room].pop()
            if not open_rows[room]:
                occupied &= ~(1 << room)
            rows[row].append(piece)
        else:
            room, row = row_length, len(rows)
            rows.append([piece])
        left = room - size
        if left:
            open_rows[left].append(row)
            occupied |= 1 << left
    return rows


def build_batches(
    rows: Sequence[Sequence[Piece]],
    sequences: Sequence[IntArray],
    *,
    row_length: int,
    batch_rows: int,
    prefix_token: int | None,
) -> Iterator[Batch]:
    """Fill rows into arrays of the fixed shape (batch_rows, row_length); the last batch ends with empty rows.

    Args:
        rows: from `pack_rows`.
        sequences: token ids, by `Piece.sequence`.
        row_length, batch_rows: the fixed shape.
        prefix_token: fed where a window has its prefix.
    """
    for start in range(0, len(rows), batch_rows):
        shape = (batch_rows, row_length)
        token_ids, targets, positions, segments = (np.zeros(shape, dtype=np.int32) for _ in range(4))
        placements = []
        for row, pieces in enumerate(rows[start : start + batch_rows]):
            column = 0
            for segment, piece in enumerate(pieces, start=1):
                window, ids = piece.window, sequences[piece.sequence]
                stop = column + window.inputs
                fed = slice(column + int(window.prefix), stop)
                if window.prefix:
                    token_ids[row, column] = prefix_token
                token_ids[row, fed] = ids[window.start : window.end - 1]
                targets[row, stop - window.scored : stop] = ids[window.first_scored : window.end]
                positions[row, column:stop] = np.arange(window.inputs)
                segments[row, column:stop] = segment
                placements.append(Placement(piece, row, column))
                column = stop
        yield Batch(token_ids, targets, positions, segments, tuple(placements))
