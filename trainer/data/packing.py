"""Documents packed into rows of fixed length: several texts a row, none sees another."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.data.documents import Document

# How many unfinished rows stay open: more fill better, fewer keep the shuffled order.
_OPEN_ROWS = 16

IntRows = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Piece:
    """Part of a document that fits into a row: inputs [start, start + length), targets one further on."""

    document: int
    start: int
    length: int


Row = list[Piece]


@dataclass(frozen=True)
class Batch:
    """B rows of S positions; position i asks for the token after token_ids[:, i].

    Attributes:
        token_ids, targets: int32 [B, S]; targets is 0 where nothing is asked.
        positions: int32 [B, S], restarting with each piece.
        segments: int32 [B, S], the number of the piece within the row from 1; 0 is padding.
        weights: float32 [B, S], 1 where the loss looks.
        record_ids: of the documents in it, in order.
        tokens: input positions that aren't padding.
    """

    token_ids: IntRows
    targets: IntRows
    positions: IntRows
    segments: IntRows
    weights: npt.NDArray[np.float32]
    record_ids: list[str]
    tokens: int


def cut(documents: Sequence[Document], length: int) -> list[Piece]:
    """Pieces of at most `length` inputs. Each token but a document's first is the target of exactly one piece."""
    return [
        Piece(index, start, min(length, len(document.ids) - 1 - start))
        for index, document in enumerate(documents)
        for start in range(0, len(document.ids) - 1, length)
    ]


def pack(pieces: Sequence[Piece], length: int, *, packing: bool) -> list[Row]:
    """Lay pieces into rows of `length`, first fit over a few open rows; one piece a row without `packing`."""
    if not packing:
        return [[piece] for piece in pieces]
    done: list[Row] = []
    rows: list[tuple[Row, int]] = []  # open rows and the room left in each
    for piece in pieces:
        for index, (row, room) in enumerate(rows):
            if piece.length <= room:
                row.append(piece)
                rows[index] = (row, room - piece.length)
                break
        else:
            rows.append(([piece], length - piece.length))
            if len(rows) > _OPEN_ROWS:
                fullest = min(range(len(rows)), key=lambda index: rows[index][1])
                done.append(rows.pop(fullest)[0])
    return done + [row for row, _ in rows]


def epoch_rows(pieces: Sequence[Piece], length: int, *, packing: bool, seed: int, epoch: int) -> list[Row]:
    """The rows of one epoch: every piece once, in an order that seed and epoch alone decide."""
    generator = np.random.default_rng([seed, epoch])
    rows = pack([pieces[index] for index in generator.permutation(len(pieces))], length, packing=packing)
    return [rows[index] for index in generator.permutation(len(rows))]


def batches(
    documents: Sequence[Document], rows: Sequence[Row], length: int, batch_size: int
) -> Iterator[Batch]:
    """Cut rows into batches; the last is filled up with empty rows, so that every batch has one shape."""
    for start in range(0, len(rows), batch_size):
        yield _batch(documents, rows[start : start + batch_size], length, batch_size)


def _batch(documents: Sequence[Document], rows: Sequence[Row], length: int, batch_size: int) -> Batch:
    token_ids, targets, positions, segments = (
        np.zeros((batch_size, length), dtype=np.int32) for _ in range(4)
    )
    weights = np.zeros((batch_size, length), dtype=np.float32)
    record_ids: list[str] = []
    for index, row in enumerate(rows):
        column = 0
        for number, piece in enumerate(row, start=1):
            document = documents[piece.document]
            inputs = slice(piece.start, piece.start + piece.length)
            asked = slice(piece.start + 1, piece.start + piece.length + 1)
            place = (index, slice(column, column + piece.length))
            token_ids[place] = document.ids[inputs]
            targets[place] = document.ids[asked]
            positions[place] = np.arange(piece.length)
            segments[place] = number
            weights[place] = document.loss[asked]
            record_ids.append(document.record_id)
            column += piece.length
    return Batch(
        token_ids, targets, positions, segments, weights, record_ids, int(np.count_nonzero(segments))
    )
