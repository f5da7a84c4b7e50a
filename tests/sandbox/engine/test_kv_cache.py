"""Keys and values between turns."""

import numpy as np
import pytest

from sandbox.engine.kv_cache import BLOCK, KvBudgetError, KvCache, KvEntry, KvShape

SHAPE = KvShape(layers=2, kv_heads=3, head_size=4)
BLOCK_BYTES = SHAPE.bytes_for(1)


def rows(ids: list[int]) -> list[np.ndarray]:
    """Keys and values that tell their token, layer and kind apart."""
    return [
        np.broadcast_to(
            np.array([token * 10 + part for token in ids], np.float32)[None, None, :, None],
            (1, 3, len(ids), 4),
        )
        for part in range(4)
    ]


def test_what_was_appended_comes_back_in_order() -> None:
    entry = KvEntry(SHAPE, 8)
    entry.append([1, 2, 3], rows([1, 2, 3]))
    entry.append([4], rows([4]))
    past = entry.past()
    assert entry.ids == [1, 2, 3, 4]
    assert [part.shape for part in past] == [(1, 3, BLOCK, 4)] * 4
    assert all(part.flags.c_contiguous for part in past)
    for found, wanted in zip(past, rows([1, 2, 3, 4]), strict=True):
        assert (found[:, :, :4] == wanted).all()


def test_the_common_prefix_is_found_by_tokens_and_leaves_one_to_compute() -> None:
    entry = KvEntry(SHAPE, 8)
    entry.append([1, 2, 3], rows([1, 2, 3]))
    assert entry.keep_common_prefix([1, 2, 3, 4]) == 3
    assert entry.keep_common_prefix([1, 2, 3]) == 2
    assert entry.keep_common_prefix([1, 9, 3]) == 1
    assert entry.ids == [1]
    assert entry.keep_common_prefix([7, 1]) == 0


def test_growing_keeps_the_content() -> None:
    cache = KvCache(SHAPE, 10 * BLOCK_BYTES)
    entry = cache.acquire(1, 3)
    entry.append([1, 2, 3], rows([1, 2, 3]))
    again = cache.acquire(1, 3 * BLOCK)
    assert again is entry
    assert entry.room == 3 * BLOCK
    assert (entry.past()[3][:, :, :3] == rows([1, 2, 3])[3]).all()
    assert cache.used_bytes == 3 * BLOCK_BYTES


def test_the_longest_unused_idle_entry_makes_room() -> None:
    cache = KvCache(SHAPE, 3 * BLOCK_BYTES)
    entries = {key: cache.acquire(key, 1) for key in (1, 2, 3)}
    for key in (1, 3):
        entries[key].append([5], rows([5]))
        entries[key].in_flight = False
    cache.acquire(1, 1).in_flight = False
    cache.acquire(4, 1)  # 2 is in flight, 3 is the longest unused
    assert cache.acquire(1, 1).ids == [5]
    with pytest.raises(KvBudgetError):
        cache.acquire(3, 1)
    assert cache.used_bytes <= 3 * BLOCK_BYTES


def test_a_refusal_evicts_nothing() -> None:
    cache = KvCache(SHAPE, 3 * BLOCK_BYTES)
    idle = cache.acquire(1, 1)
    idle.append([5], rows([5]))
    idle.in_flight = False
    cache.acquire(2, 1)
    with pytest.raises(KvBudgetError):
        cache.acquire(3, 3 * BLOCK)
    assert cache.acquire(1, 1).ids == [5]


def test_dropping_is_idempotent() -> None:
    cache = KvCache(SHAPE, 3 * BLOCK_BYTES)
    cache.acquire(1, 1)
    for _ in range(2):
        cache.drop(1)
    assert cache.used_bytes == 0
