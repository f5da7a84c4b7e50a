"""The packing plan: everything packed once, in few rows, whatever the order of the texts."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evalkit.scenario.schema import Window as Policy
from evalkit.scoring.rows import Piece, build_batches, pack_rows, row_length_for
from evalkit.scoring.windows import Window, plan_windows


def piece(index: int, inputs: int) -> Piece:
    return Piece(index, Window(start=0, first_scored=1, end=inputs + 1, prefix=False))


@given(st.lists(st.integers(1, 32), max_size=60))
def test_every_piece_is_packed_once_and_rows_are_not_overfull(sizes):
    pieces = [piece(index, size) for index, size in enumerate(sizes)]
    rows = pack_rows(pieces, 32)
    assert sorted(item.sequence for row in rows for item in row) == list(range(len(sizes)))
    assert all(sum(item.window.inputs for item in row) <= 32 for row in rows)


def test_short_texts_share_rows():
    generator = np.random.default_rng(1)
    pieces = [piece(index, int(size)) for index, size in enumerate(generator.integers(20, 61, 2000))]
    rows = pack_rows(pieces, 256)
    filled = sum(item.window.inputs for row in rows for item in row) / (len(rows) * 256)
    assert filled > 0.97


def test_short_windows_get_short_rows():
    assert [row_length_for(inputs, 512) for inputs in (1, 32, 33, 64, 65, 200, 256, 257, 512)] == [
        128,
        128,
        128,
        128,
        256,
        512,
        512,
        512,
        512,
    ]
    assert row_length_for(8, 20) == 20


def test_batches_have_one_shape_and_hold_each_target_behind_its_context():
    sequences = [np.arange(10, 10 + size, dtype=np.int32) for size in (5, 17, 9, 3, 30)]
    policy = Policy(length=8, stride=4, prefix="first")
    pieces = [
        Piece(index, window)
        for index, ids in enumerate(sequences)
        for window in plan_windows(len(ids), policy, has_prefix=True)
    ]
    batches = list(build_batches(pack_rows(pieces, 8), sequences, row_length=8, batch_rows=3, prefix_token=1))
    assert {batch.token_ids.shape for batch in batches} == {(3, 8)}
    seen = []
    for batch in batches:
        for placement in batch.placements:
            window = placement.piece.window
            stop = placement.column + window.inputs
            columns = slice(placement.column, stop)
            ids = sequences[placement.piece.sequence]
            fed = batch.token_ids[placement.row, columns]
            assert list(fed[int(window.prefix) :]) == list(ids[window.start : window.end - 1])
            assert not window.prefix or fed[0] == 1
            asked = batch.targets[placement.row, stop - window.scored : stop]
            assert list(asked) == list(ids[window.first_scored : window.end])
            assert list(batch.positions[placement.row, columns]) == list(range(window.inputs))
            assert len(set(batch.segments[placement.row, columns])) == 1
            seen += [(placement.piece.sequence, token) for token in range(window.first_scored, window.end)]
    expected = [(index, token) for index, ids in enumerate(sequences) for token in range(len(ids))]
    assert sorted(seen) == expected
    assert all(
        (batch.segments == 0).sum() == (batch.segments.size - fed_positions(batch)) for batch in batches
    )


def fed_positions(batch) -> int:
    return sum(placement.piece.window.inputs for placement in batch.placements)
