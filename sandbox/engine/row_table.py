"""Which turn sits in which row: joining, leaving, and the room that all rows have."""

from collections.abc import Iterator

from sandbox.engine.kv_cache import KvRows, room_for
from sandbox.engine.turns import ActiveTurn, Phase


class RowTable:
    """The turns in rows, without gaps: whoever leaves is replaced by the last."""

    def __init__(self, rows: KvRows, max_rows: int, max_length: int) -> None:
        """Start empty.

        Args:
            rows: the memory.
            max_rows: turns in rows at most.
            max_length: longest turn.
        """
        self.rows = rows
        self._max_rows = max_rows
        self._max_length = max_length
        self._turns: list[ActiveTurn] = []

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[ActiveTurn]:
        return iter(self._turns)

    @property
    def used_bytes(self) -> int:
        """Memory of the rows in use."""
        return len(self._turns) * self.rows.room * self.rows.shape.token_bytes

    def of(self, phase: Phase) -> list[ActiveTurn]:
        """Turns of a phase, in the order of their rows."""
        return [turn for turn in self._turns if turn.phase is phase]

    def row(self, turn: ActiveTurn) -> int:
        """Number of a turn's row."""
        return self._turns.index(turn)

    def fits(self, tokens: int) -> bool:
        """Whether a turn of so many tokens is possible at all."""
        return tokens <= self._max_length

    def join(self, turn: ActiveTurn) -> bool:
        """Give a turn a row, if there is one for its length."""
        needed = max(room_for(t.most_tokens, self._max_length) for t in (turn, *self._turns))
        count = len(self._turns) + 1
        if count > self._max_rows:
            return False
        # The room stays as it is where possible: changing it copies every row.
        if self.rows.room < needed or self.rows.count < count:
            if self.rows.rows_of(needed) < count:
                return False
            self.rows.lay_out(needed, [t.computed for t in self._turns])
        self._turns.append(turn)
        return True

    def leave(self, turn: ActiveTurn) -> None:
        """Take a turn's row away."""
        row = self._turns.index(turn)
        last = self._turns.pop()
        if last is not turn:
            self.rows.move(len(self._turns), row, last.computed)
            self._turns[row] = last
