"""Keys and values in memory: what a token takes, how the budget is divided, and the rows that the graph reads.

The budget has two parts, both taken at the start and never grown. The rows hold the turns in flight, in the very
layout of the graph's input, so that a step reads and writes them in place. The blocks (prefix_cache.py) keep
what later turns may reuse.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evalkit.errors import InputError

Float32 = npt.NDArray[np.float32]

# Room and length are handed out in blocks of so many tokens; a shared or earlier prefix is reused in whole blocks.
BLOCK = 8
# Room of a row: this many tokens, or 2, 4, 8 … times as many.
_SMALLEST_ROOM = 128


@dataclass(frozen=True)
class KvShape:
    """What a model keeps for each token: keys and values of [kv_heads, head_size] float32 in each layer."""

    layers: int
    kv_heads: int
    head_size: int

    @property
    def token_bytes(self) -> int:
        """Memory of one token."""
        return 2 * self.layers * self.kv_heads * self.head_size * 4

    def bytes_for(self, tokens: int) -> int:
        """Memory of `tokens` tokens in whole blocks."""
        return self.token_bytes * whole_blocks(tokens)


def whole_blocks(tokens: int) -> int:
    """`tokens` rounded up to whole blocks, at least one."""
    return -(-max(tokens, 1) // BLOCK) * BLOCK


def room_for(tokens: int, max_length: int) -> int:
    """Room of a row that must hold `tokens` tokens: one of few sizes, so that the graph sees few shapes."""
    room = _SMALLEST_ROOM
    while room < tokens:
        room *= 2
    return min(room, whole_blocks(max_length))


@dataclass(frozen=True)
class KvPlan:
    """How a budget is divided.

    Attributes:
        row_tokens: tokens that fit into all rows together.
        blocks: number of blocks for what is kept between turns.
    """

    row_tokens: int
    blocks: int


def divide_budget(shape: KvShape, budget_bytes: int, max_length: int, max_rows: int) -> KvPlan:
    """Half of the budget for the rows (at least one of max_length, at most max_rows of it), the rest for blocks.

    Raises:
        InputError: not even one row fits.
    """
    row = whole_blocks(max_length)
    tokens = budget_bytes // shape.token_bytes
    if tokens < row:
        needed = -(-shape.bytes_for(max_length) // (1 << 20))
        raise InputError(
            f"cache memory: {budget_bytes >> 20} MiB is less than one session of {max_length} tokens takes; give at least"
            f" {needed} MiB"
        )
    row_tokens = min(max(row, tokens // 2), max_rows * row)
    return KvPlan(row_tokens, (tokens - row_tokens) // BLOCK)


class KvRows:
    """Keys and values of the turns in flight: for each layer and kind one array [rows, kv_heads, room, head_size].

    The arrays are views of memory that is taken once. With a larger room there are fewer rows.

    Attributes:
        room: tokens that fit into a row, 0 before the first `lay_out`.
        count: number of rows.
        parts: keys of layer 0, values of layer 0, keys of layer 1, …
    """

    def __init__(self, shape: KvShape, tokens: int) -> None:
        """Take memory for `tokens` tokens."""
        self.shape = shape
        self.tokens = tokens
        self.room = 0
        self.count = 0
        self.parts: list[Float32] = []
        # Zeros, because rows that nobody uses are multiplied by weights of zero: they must be finite.
        self._memory = [
            np.zeros(shape.kv_heads * shape.head_size * tokens, np.float32) for _ in range(2 * shape.layers)
        ]

    def rows_of(self, room: int) -> int:
        """How many rows of this room fit."""
        return self.tokens // room

    def lay_out(self, room: int, lengths: Sequence[int]) -> None:
        """Change the room; the first rows keep their first `lengths` tokens."""
        shape = self.shape
        count = self.rows_of(room)
        old, self.parts = self.parts, []
        for index, memory in enumerate(self._memory):
            kept = [old[index][row, :, :length].copy() for row, length in enumerate(lengths)]
            used = memory[: count * shape.kv_heads * room * shape.head_size]
            part = used.reshape(count, shape.kv_heads, room, shape.head_size)
            for row, values in enumerate(kept):
                part[row, :, : values.shape[1]] = values
            self.parts.append(part)
        self.room, self.count = room, count

    def move(self, source: int, target: int, length: int) -> None:
        """Copy a row's first `length` tokens over another row."""
        for part in self.parts:
            part[target, :, :length] = part[source, :, :length]

    def clear(self, row: int) -> None:
        """Make a row all zeros."""
        for part in self.parts:
            part[row] = 0
