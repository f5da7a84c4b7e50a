"""The global order, and its shares."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.order import epoch_order, rank_batches


def test_seed_and_epoch_alone_decide_the_order():
    orders = {
        (seed, epoch): tuple(epoch_order(50, seed=seed, epoch=epoch)) for seed in (1, 2) for epoch in (0, 1)
    }
    assert len(set(orders.values())) == 4 and orders[1, 0] == tuple(epoch_order(50, seed=1, epoch=0))
    assert all(sorted(order) == list(range(50)) for order in orders.values())


@given(rows=st.integers(0, 60), batch_size=st.integers(1, 7), size=st.integers(1, 9))
def test_shares_are_disjoint_and_complete_and_the_order_is_the_same_for_any_number_of_ranks(
    rows, batch_size, size
):
    order = epoch_order(rows, seed=3, epoch=4)
    shares = [rank_batches(order, batch_size, rank=rank, size=size) for rank in range(size)]
    assert len({share.shape for share in shares}) == 1  # every rank takes part in every step
    together = np.concatenate(shares, axis=1).reshape(-1)  # a step's rows, rank after rank
    assert together[together >= 0].tolist() == order.tolist()
    one = rank_batches(order, batch_size * size, rank=0, size=1)
    assert one.reshape(-1).tolist() == together.tolist()


def test_a_rank_that_is_none_is_refused():
    with pytest.raises(ValueError, match="rank 2 isn't within 0 and 1"):
        rank_batches(epoch_order(5, seed=0, epoch=0), 2, rank=2, size=2)
