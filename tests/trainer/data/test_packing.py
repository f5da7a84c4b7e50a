"""Rows: each token once, no text sees another, padding told by segment."""

import numpy as np
import pytest

from tests.trainer.data.rows import random_documents, random_rows
from trainer.data.packing import batches, cut, pack


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize(("length", "batch_size"), [(8, 3), (32, 4), (128, 1)])
def test_packing_keeps_each_token_once(packing, length, batch_size):
    documents = random_documents(length, 60, 70)
    asked, weighted, tokens = [], [], 0
    rows = pack(cut(documents, length), length, packing=packing, pad_token_id=5)
    for batch in batches(rows, length, batch_size, pad_token_id=5):
        assert batch.token_ids.shape == (batch_size, length)
        real = batch.segments > 0
        # The target is the token after the input, in the same document.
        assert (batch.targets[real] == batch.token_ids[real] + 1).all()
        starts = real & (np.diff(batch.segments, axis=1, prepend=0) != 0)
        assert (batch.positions[starts] == 0).all()
        inside = real[:, 1:] & ~starts[:, 1:]
        assert (np.diff(batch.positions, axis=1)[inside] == 1).all()
        assert (batch.weights[~real] == 0).all() and (batch.targets[~real] == 0).all()
        assert (batch.token_ids[~real] == 5).all() and (batch.positions[~real] == 0).all()
        for array in (batch.token_ids, batch.targets, batch.positions, batch.segments):
            assert array.dtype == np.int32
        assert batch.weights.dtype == np.float32
        if not packing:
            assert batch.segments.max() == 1
        asked.extend(batch.targets[real].tolist())
        weighted.extend(batch.targets[batch.weights > 0].tolist())
        tokens += batch.tokens
    assert sorted(asked) == sorted(int(token) for document in documents for token in document.ids[1:])
    assert sorted(weighted) == sorted(
        int(token) for document in documents for token in document.ids[document.loss]
    )
    assert tokens == len(asked)


def test_rows_are_well_filled_and_name_their_documents():
    rows = random_rows(200)
    tokens = sum(int(row.lengths.sum()) for row in rows)
    assert len(rows) < 1.15 * tokens / 32
    for row in rows:
        ends = np.cumsum(row.lengths)
        firsts = row.token_ids[ends - row.lengths] // 1000
        assert row.record_ids == [f"记录{number}" for number in firsts]
        assert row.loss_mask.dtype == np.uint8 and row.token_ids.dtype == np.int32


def test_the_remainder_policy_leaves_out_only_the_rest_of_a_long_document():
    documents = random_documents(3, 60, 70)
    kept, full = list(cut(documents, 32)), list(cut(documents, 32, "drop"))
    short = {document.record_id for document in documents if len(document.ids) - 1 < 32}
    assert {piece.record_id for piece in kept} == {piece.record_id for piece in full}
    left_out = [piece for piece in kept if all(piece.ids is not other.ids for other in full)]
    assert all(piece.length == 32 or piece.record_id in short for piece in full)
    assert sum(piece.length for piece in kept) - sum(piece.length for piece in full) == sum(
        (len(document.ids) - 1) % 32 for document in documents if len(document.ids) - 1 > 32
    )
    assert left_out
