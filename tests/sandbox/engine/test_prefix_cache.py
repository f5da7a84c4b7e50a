"""Blocks that later turns reuse."""

import numpy as np

from sandbox.engine.kv_cache import KvRows, KvShape
from sandbox.engine.prefix_cache import Lease, PrefixCache

SHAPE = KvShape(layers=2, kv_heads=3, head_size=4)
BLOCK_BYTES = SHAPE.bytes_for(1)


class Bench:
    """A cache, and one row whose content tells the token ids."""

    def __init__(self, blocks: int = 32) -> None:
        self.cache = PrefixCache(SHAPE, blocks)
        self.rows = KvRows(SHAPE, 1024)
        self.rows.lay_out(1024, [])

    def lease(self, ids: list[int], key: int = 1, tenant: str = "t", shared: int = 0) -> Lease:
        return self.cache.lease(tenant, key, shared, ids, len(ids) - 1)

    def write(self, ids: list[int]) -> None:
        for index, part in enumerate(self.rows.parts):
            part[0, :, : len(ids)] = np.array(ids)[None, :, None] + 1000 * index

    def read(self, length: int) -> list[int]:
        for index, part in enumerate(self.rows.parts):
            assert (part[0, :, :length] - 1000 * index == self.rows.parts[0][0, :1, :length, :1]).all()
        return [int(value) for value in self.rows.parts[0][0, 0, :length, 0]]

    def turn(self, ids: list[int], key: int = 1, tenant: str = "t", shared: int = 0) -> int:
        """A whole turn; returns how many tokens it reused, after it has compared them."""
        lease = self.lease(ids, key, tenant, shared)
        reused = lease.tokens
        self.write([0] * 1024)
        self.cache.load(lease, self.rows, 0)
        assert self.read(reused) == ids[:reused]
        self.write(ids)
        self.cache.keep(lease, ids, len(ids), self.rows, 0)
        self.cache.give_back(lease)
        return reused


def ids_of(length: int, first: int = 1) -> list[int]:
    return [first + number for number in range(length)]


def test_a_session_reuses_its_whole_blocks_but_never_its_last_token() -> None:
    bench = Bench()
    assert [bench.turn(ids_of(length)) for length in (40, 40, 60, 33, 32, 100)] == [0, 32, 40, 32, 24, 56]


def test_s31_tokens_are_compared_and_other_sessions_and_tenants_find_nothing() -> None:
    bench = Bench()
    bench.turn(ids_of(40))
    assert bench.turn([*ids_of(20), *ids_of(20, 500)]) == 16
    assert bench.turn(ids_of(40), key=2) == 0
    assert bench.turn(ids_of(40), tenant="u", key=3) == 0


def test_a_shared_system_prompt_is_found_by_the_tenants_sessions_alone() -> None:
    bench = Bench()
    assert bench.turn(ids_of(60), key=1, shared=40) == 0
    assert bench.turn(ids_of(60), key=2, shared=40) == 40
    assert bench.turn(ids_of(60), key=2, shared=40) == 56
    assert bench.turn(ids_of(60), key=3, shared=0) == 0  # says that nothing is shared
    assert bench.turn(ids_of(60), key=4, shared=40, tenant="u") == 0


def test_used_memory_goes_back_to_zero_when_sessions_end() -> None:
    bench = Bench()
    for key in (1, 2):
        bench.turn(ids_of(60), key=key, shared=40)
    assert bench.cache.used_bytes == (5 + 2 + 2) * BLOCK_BYTES
    bench.cache.drop(1)
    assert bench.cache.used_bytes == (5 + 2) * BLOCK_BYTES
    assert bench.turn(ids_of(60), key=2, shared=40) == 56
    for key in (2, 2, 99):
        bench.cache.drop(key)
    assert bench.cache.used_bytes == 0
    assert not bench.cache._roots and not bench.cache._of_session and not bench.cache._leases


def test_the_longest_unused_ends_of_conversations_make_room() -> None:
    bench = Bench(blocks=6)
    for key in (1, 2, 3):
        bench.turn(ids_of(17, 100 * key), key=key)
    bench.turn(ids_of(17, 100), key=1)
    bench.turn(ids_of(9, 400), key=4)
    assert bench.cache.used_bytes == 6 * BLOCK_BYTES
    assert bench.turn(ids_of(17, 200), key=2) == 8  # lost its last block
    assert bench.turn(ids_of(17, 100), key=1) == 16


def test_what_a_turn_in_flight_holds_stays() -> None:
    bench = Bench(blocks=8)
    bench.turn(ids_of(33, 100), key=1)
    held = bench.lease(ids_of(33, 100), key=1)
    for key in range(2, 6):
        bench.turn(ids_of(65, 100 * key), key=key)
    assert held.tokens == 32
    bench.cache.load(held, bench.rows, 0)
    assert bench.read(32) == ids_of(32, 100)
    bench.cache.give_back(held)
    for key in range(2, 6):
        bench.turn(ids_of(65, 100 * key), key=key)
    assert bench.turn(ids_of(33, 100), key=1) == 0


def test_a_session_dropped_in_flight_keeps_nothing() -> None:
    bench = Bench()
    lease = bench.lease(ids_of(40))
    bench.cache.drop(1)
    bench.write(ids_of(40))
    bench.cache.keep(lease, ids_of(40), 40, bench.rows, 0)
    bench.cache.give_back(lease)
    assert bench.cache.used_bytes == 0
    assert bench.turn(ids_of(40)) == 0


def test_without_memory_nothing_is_kept() -> None:
    bench = Bench(blocks=0)
    assert [bench.turn(ids_of(40)) for _ in range(2)] == [0, 0]


def test_two_sessions_that_compute_the_same_shared_block_keep_one() -> None:
    bench = Bench()
    leases = [bench.lease(ids_of(40), key, shared=40) for key in (1, 2)]
    bench.write(ids_of(40))
    for lease in leases:
        bench.cache.keep(lease, ids_of(40), 40, bench.rows, 0)
    assert bench.cache.used_bytes == 5 * BLOCK_BYTES
    for lease in leases:
        bench.cache.give_back(lease)
    for key in (1, 2):
        bench.cache.drop(key)
    assert bench.cache.used_bytes == 0
