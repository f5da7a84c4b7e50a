"""Recompute placement: exact against every combination, and consistent with the memory plan."""

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.planning.public_runs import QWEN_7B, QWEN_72B
from trainer.planning.activations import kept_bytes, recomputed_bytes
from trainer.planning.recompute import Candidate, candidates, frontier, solve
from trainer.planning.settings import Strategy, Training

kinds = st.lists(
    st.builds(
        lambda layers, saved, share, flop: (layers, saved, saved * share // 4, flop),
        st.integers(1, 3), st.integers(1, 40), st.integers(0, 4), st.integers(0, 30),
    ),
    min_size=1,
    max_size=4,
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(kinds, st.integers(0, 200))
def test_the_cheapest_choice_is_the_one_that_trying_all_finds(rows, wanted):
    found = [Candidate(str(index), *row) for index, row in enumerate(rows)]
    choices = solve(found, 1.0)
    best = None
    for counts in product(*(range(item.layers + 1) for item in found)):
        saved = sum(
            n * item.saved_bytes - (n > 0) * item.live_bytes for n, item in zip(counts, found, strict=True)
        )
        flop = sum(n * item.extra_flop for n, item in zip(counts, found, strict=True))
        if saved >= wanted and (best is None or flop < best):
            best = flop
    enough = [choice.extra_flop for choice in choices if choice.saved_bytes >= wanted]
    assert (min(enough) if enough else None) == best
    for choice in choices:
        by_name = {item.name: item for item in found}
        assert choice.saved_bytes == sum(
            n * by_name[name].saved_bytes - by_name[name].live_bytes for name, n in choice.layers.items()
        )
        assert choice.extra_flop == sum(n * by_name[name].extra_flop for name, n in choice.layers.items())


@settings(max_examples=40, deadline=None)
@given(kinds)
def test_on_the_frontier_more_bytes_cost_more(rows):
    choices = solve([Candidate(str(index), *row) for index, row in enumerate(rows)], 1.0)
    for earlier, later in pairwise(choices):
        assert earlier.saved_bytes < later.saved_bytes and earlier.extra_flop < later.extra_flop


def test_scores_are_the_first_thing_to_recompute_without_flash_attention():
    training = Training(sequence_length=4096, strategy=Strategy(model=8), flash_attention=False, dropout=True)
    ranked = [item.name for item in candidates(QWEN_72B, training, 0)]
    matrices = ("queries, keys, values", "up projection", "feed-forward residual", "output mask")
    assert all(ranked.index("attention scores") < ranked.index(name) for name in matrices)
    assert ranked.index("attention input") < ranked.index("attention scores")


def test_dropping_everything_is_full_recomputation():
    """The frontier's last choice saves what the memory plan says that `recompute: full` saves."""
    strategy = Strategy(model=2, pipeline=2, micro_batches=8, sequence_parallel=True)
    training = Training(sequence_length=2048, strategy=strategy)
    last = frontier(QWEN_7B, training, stage=0).choices[-1]
    full = training.model_copy(update={"strategy": strategy.model_copy(update={"recompute": "full"})})
    kept = 14 * 2 * (kept_bytes(QWEN_7B, training) - kept_bytes(QWEN_7B, full))
    assert last.saved_bytes == kept - recomputed_bytes(QWEN_7B, full)
    # All but the down projection is computed again: less than a third of forward and backward.
    assert 0.2 < last.extra_share < 1 / 3


def test_nothing_to_save_costs_nothing_and_too_much_is_none():
    found = frontier(QWEN_7B, Training(sequence_length=1024))
    assert found.cheapest(0).layers == {} and found.cheapest(0).extra_flop == 0
    assert found.cheapest(found.choices[-1].saved_bytes + 1) is None


def test_a_large_model_is_solved_exactly_within_the_frontier():
    training = Training(sequence_length=4096, strategy=Strategy(model=8, micro_batches=64))
    found = frontier(QWEN_72B, training)
    half = found.cheapest(found.choices[-1].saved_bytes // 2)
    assert half is not None and half.extra_share == pytest.approx(0, abs=0.001)
