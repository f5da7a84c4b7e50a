"""Documents packed into rows of fixed length: several texts a row, none sees another."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np
import numpy.typing as npt

from trainer.data.documents import Document

# How many unfinished rows stay open: more fill better, fewer keep neighbours together.
_OPEN_ROWS = 16

IntRows = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Piece:
    """Part of a document that fits into a row: n inputs and, one further on, n targets.

    Attributes:
        record_id: of the document.
        ids: int32 (n + 1,), the inputs and the last target.
        loss: bool (n,), True where the target is to be learnt.
    """

    record_id: str
    ids: npt.NDArray[np.int32]
    loss: npt.NDArray[np.bool_]

    @property
    def length(self) -> int:
        """Inputs."""
        return len(self.loss)


@dataclass(frozen=True)
class Row:
    """One row of S positions; what follows the pieces is padding.

    Attributes:
        token_ids, targets: int32 (S,); targets is 0 where nothing is asked.
        loss_mask: uint8 (S,), 1 where the loss looks.
        lengths: int32 (pieces,), the positions that each piece takes.
        record_ids: of the pieces' documents, in order.
    """

    token_ids: IntRows
    targets: IntRows
    loss_mask: npt.NDArray[np.uint8]
    lengths: IntRows
    record_ids: list[str]


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


def cut(
    documents: Iterable[Document], length: int, remainder: Literal["keep", "drop"] = "keep"
) -> Iterator[Piece]:
    """Pieces of at most `length` inputs. Each token but a document's first is the target of exactly one piece.

    With `remainder="drop"` the rest of a document behind its full pieces is left out; a document shorter than a piece
    is kept.
    """
    for document in documents:
        inputs = len(document.ids) - 1
        for start in range(0, inputs, length):
            end = min(start + length, inputs)
            if remainder == "drop" and start and end - start < length:
                continue
            yield Piece(document.record_id, document.ids[start : end + 1], document.loss[start + 1 : end + 1])


def pack(pieces: Iterable[Piece], length: int, *, packing: bool, pad_token_id: int = 0) -> Iterator[Row]:
    """Lay pieces into rows of `length`, first fit over a few open rows; one piece a row without `packing`."""
    rows: list[tuple[list[Piece], int]] = []  # open rows and the room left in each
    for piece in pieces:
        if not packing:
            yield _row([piece], length, pad_token_id)
            continue
        for index, (row, room) in enumerate(rows):
            if piece.length <= room:
                row.append(piece)
                rows[index] = (row, room - piece.length)
                break
        else:
            rows.append(([piece], length - piece.length))
            if len(rows) > _OPEN_ROWS:
                fullest = min(range(len(rows)), key=lambda index: rows[index][1])
                yield _row(rows.pop(fullest)[0], length, pad_token_id)
    for row, _ in rows:
        yield _row(row, length, pad_token_id)


def _row(pieces: Sequence[Piece], length: int, pad_token_id: int) -> Row:
    token_ids = np.full(length, pad_token_id, dtype=np.int32)
    targets = np.zeros(length, dtype=np.int32)
    loss_mask = np.zeros(length, dtype=np.uint8)
    start = 0
    for piece in pieces:
        place = slice(start, start + piece.length)
        token_ids[place], targets[place], loss_mask[place] = piece.ids[:-1], piece.ids[1:], piece.loss
        start += piece.length
    lengths = np.array([piece.length for piece in pieces], dtype=np.int32)
    return Row(token_ids, targets, loss_mask, lengths, [piece.record_id for piece in pieces])


def batches(rows: Iterable[Row], length: int, batch_size: int, pad_token_id: int = 0) -> Iterator[Batch]:
    """Cut rows into batches; the last is filled up with empty rows, so that every batch has one shape."""
    source = iter(rows)
    while part := list(islice(source, batch_size)):
        yield batch_of(part, length, batch_size, pad_token_id)


def batch_of(rows: Sequence[Row], length: int, batch_size: int, pad_token_id: int = 0) -> Batch:
    """One batch; where there are fewer rows than `batch_size`, empty ones follow."""
    token_ids = np.full((batch_size, length), pad_token_id, dtype=np.int32)
    targets, positions, segments = (np.zeros((batch_size, length), dtype=np.int32) for _ in range(3))
    weights = np.zeros((batch_size, length), dtype=np.float32)
    for index, row in enumerate(rows):
        token_ids[index], targets[index], weights[index] = row.token_ids, row.targets, row.loss_mask
        ends = np.cumsum(row.lengths)
        used = int(ends[-1])
        segments[index, :used] = np.repeat(np.arange(1, len(ends) + 1), row.lengths)
        positions[index, :used] = np.arange(used) - np.repeat(ends - row.lengths, row.lengths)
    record_ids = [record_id for row in rows for record_id in row.record_ids]
    return Batch(
        token_ids, targets, positions, segments, weights, record_ids, int(np.count_nonzero(segments))
    )
