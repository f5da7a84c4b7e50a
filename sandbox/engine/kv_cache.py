"""Keys and values of sessions between turns, in numpy arrays under a stated budget.

An entry knows the tokens it was computed from, and a prefix is reused only where they equal the prompt's, token by
token. The last token of a reply has no keys yet when the reply ends (nothing followed it): it isn't in the entry,
so the next turn feeds it with the rest of the prompt.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]

# Room and length are handed out in blocks, so that the graph sees few shapes: a new shape costs it about 1.5 ms.
BLOCK = 32


class KvBudgetError(Exception):
    """The budget is full of turns in flight."""


@dataclass(frozen=True)
class KvShape:
    """What a model keeps for each token: keys and values of [kv_heads, head_size] float32 in each layer."""

    layers: int
    kv_heads: int
    head_size: int

    def bytes_for(self, tokens: int) -> int:
        """Size of an entry with room for at least `tokens` tokens."""
        return 2 * self.layers * self.kv_heads * self.head_size * 4 * _blocks(tokens)


class KvEntry:
    """Keys and values of one session."""

    def __init__(self, shape: KvShape, room: int) -> None:
        self.shape = shape
        self.ids: list[int] = []
        self.in_flight = False
        self._rows = np.zeros((shape.layers, 2, shape.kv_heads, _blocks(room), shape.head_size), np.float32)

    @property
    def length(self) -> int:
        """Number of tokens held."""
        return len(self.ids)

    @property
    def room(self) -> int:
        """Number of tokens that fit."""
        return int(self._rows.shape[3])

    @property
    def size_bytes(self) -> int:
        """Memory of the entry."""
        return int(self._rows.nbytes)

    def resize(self, room: int) -> None:
        """Give the entry room for `room` tokens, keeping what it holds."""
        rows = np.zeros((*self._rows.shape[:3], _blocks(room), self.shape.head_size), np.float32)
        rows[:, :, :, : self.length] = self._rows[:, :, :, : self.length]
        self._rows = rows

    def keep_common_prefix(self, prompt: Sequence[int]) -> int:
        """Cut the entry to the longest prefix it shares with `prompt` and return its length.

        At least the prompt's last token is left out: its logits are wanted, so it must be computed.
        """
        common = 0
        for held, wanted in zip(self.ids, prompt[:-1], strict=False):
            if held != wanted:
                break
            common += 1
        del self.ids[common:]
        return common

    def append(self, ids: Sequence[int], layers: Sequence[Float32]) -> None:
        """Add computed tokens.

        Args:
            ids: n token ids.
            layers: keys of layer 0, values of layer 0, keys of layer 1, ...; each [1, kv_heads, n, head_size].
        """
        start, end = self.length, self.length + len(ids)
        for index, new in enumerate(layers):
            self._rows[index // 2, index % 2, :, start:end] = new[0]
        self.ids.extend(ids)

    def past(self) -> list[Float32]:
        """What is held, in the order of `append`, each [1, kv_heads, P, head_size], contiguous.

        P is the length rounded up to a whole block, at least one; rows from `length` on hold anything finite and
        must be masked by the reader.
        """
        part = self._rows[:, :, None, :, : _blocks(self.length)]
        return [
            np.ascontiguousarray(part[layer, kind]) for layer in range(self.shape.layers) for kind in (0, 1)
        ]


class KvCache:
    """The entries of all sessions, the longest unused one evicted first, never one in flight."""

    def __init__(self, shape: KvShape, budget_bytes: int) -> None:
        self._shape = shape
        self._budget = budget_bytes
        self._entries: OrderedDict[int, KvEntry] = OrderedDict()  # least recently used first

    @property
    def used_bytes(self) -> int:
        """Memory of all entries."""
        return sum(entry.size_bytes for entry in self._entries.values())

    def acquire(self, key: int, room: int) -> KvEntry:
        """The session's entry, in flight from now on, with room for `room` tokens.

        Raises:
            KvBudgetError: what is in flight leaves no room.
        """
        entry = self._entries.get(key)
        held = entry.size_bytes if entry is not None else 0
        if entry is None or entry.room < room:
            self._make_room(self._shape.bytes_for(room) - held, keep=key)
        if entry is None:
            entry = self._entries[key] = KvEntry(self._shape, room)
        elif entry.room < room:
            entry.resize(room)
        self._entries.move_to_end(key)
        entry.in_flight = True
        return entry

    def drop(self, key: int) -> None:
        """Forget a session's entry; unknown keys are ignored."""
        self._entries.pop(key, None)

    def _make_room(self, more_bytes: int, keep: int) -> None:
        excess = self.used_bytes + more_bytes - self._budget
        victims = []
        for key, entry in self._entries.items():
            if excess <= 0:
                break
            if not entry.in_flight and key != keep:
                victims.append(key)
                excess -= entry.size_bytes
        if excess > 0:
            raise KvBudgetError
        for key in victims:
            del self._entries[key]


def _blocks(tokens: int) -> int:
    return -(-max(tokens, 1) // BLOCK) * BLOCK
