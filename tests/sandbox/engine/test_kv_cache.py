"""How memory is divided, and the rows."""

import numpy as np
import pytest

from evalkit.errors import InputError
from sandbox.engine.kv_cache import BLOCK, KvRows, KvShape, divide_budget, room_for

SHAPE = KvShape(layers=2, kv_heads=3, head_size=4)


def fill(rows: KvRows, row: int, length: int) -> None:
    for index, part in enumerate(rows.parts):
        part[row, :, :length] = np.arange(length)[None, :, None] + 100 * row + 1000 * index


def holds(rows: KvRows, row: int, was: int, length: int) -> bool:
    return all(
        (part[row, :, :length] == np.arange(length)[None, :, None] + 100 * was + 1000 * index).all()
        for index, part in enumerate(rows.parts)
    )


def test_rooms_are_few() -> None:
    assert {room_for(tokens, 1000) for tokens in range(1, 1001)} == {128, 256, 512, 1000}
    assert room_for(1, 41) == 48


def test_the_budget_is_divided_without_a_byte_too_many() -> None:
    for tokens in (1000, 3000, 10**6):
        budget = tokens * SHAPE.token_bytes + 5
        plan = divide_budget(SHAPE, budget, 1000, 32)
        assert plan.row_tokens >= 1000
        assert (plan.row_tokens + plan.blocks * BLOCK) * SHAPE.token_bytes <= budget
    assert plan.row_tokens == 32 * 1000
    with pytest.raises(InputError, match="less than one session of 1000 tokens"):
        divide_budget(SHAPE, SHAPE.bytes_for(1000) - 1, 1000, 32)
    assert divide_budget(SHAPE, SHAPE.bytes_for(1000), 1000, 32).blocks == 0


def test_rows_keep_what_they_hold_when_the_room_changes() -> None:
    rows = KvRows(SHAPE, 2048)
    rows.lay_out(128, [])
    assert (rows.count, [part.shape for part in rows.parts]) == (16, [(16, 3, 128, 4)] * 4)
    for row, length in enumerate((100, 7)):
        fill(rows, row, length)
    for room in (512, 1024, 128):
        rows.lay_out(room, [100, 7])
        assert rows.count == 2048 // room
        assert holds(rows, 0, 0, 100)
        assert holds(rows, 1, 1, 7)


def test_a_row_moves() -> None:
    rows = KvRows(SHAPE, 512)
    rows.lay_out(128, [])
    fill(rows, 3, 90)
    rows.move(3, 1, 90)
    assert holds(rows, 1, 3, 90)


def test_every_part_is_one_piece_of_memory() -> None:
    rows = KvRows(SHAPE, 1000)
    rows.lay_out(128, [])
    assert all(part.flags.c_contiguous and part.base is not None for part in rows.parts)
