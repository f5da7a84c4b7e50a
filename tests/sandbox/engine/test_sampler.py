"""Choosing tokens."""

import numpy as np

from sandbox.domain import Sampling
from sandbox.engine.sampler import Sampler

LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))


def draw(count: int, **settings: float) -> list[int]:
    sampler = Sampler(Sampling(max_new_tokens=1, **settings))  # type: ignore[arg-type]
    return [sampler.choose(LOGITS) for _ in range(count)]


def test_greedy_takes_the_best_and_of_equals_the_first() -> None:
    assert draw(3) == [1, 1, 1]
    assert Sampler(Sampling(1)).choose(np.array([0, 2, 2], np.float32)) == 1


def test_frequencies_follow_the_probabilities() -> None:
    counts = np.bincount(draw(20000, temperature=1.0, seed=3), minlength=4) / 20000
    assert np.allclose(counts, [0.1, 0.4, 0.2, 0.3], atol=0.015)


def test_temperature_sharpens() -> None:
    counts = np.bincount(draw(20000, temperature=0.5, seed=3), minlength=4) / 20000
    expected = np.array([0.01, 0.16, 0.04, 0.09])
    assert np.allclose(counts, expected / expected.sum(), atol=0.015)
    assert set(draw(100, temperature=1e-30)) == {1}
    assert set(draw(2000, temperature=1e6)) == {0, 1, 2, 3}


def test_top_k_and_top_p_cut_the_tail() -> None:
    assert set(draw(500, temperature=1.0, top_k=2)) == {1, 3}
    assert set(draw(500, temperature=1.0, top_k=99)) == {0, 1, 2, 3}
    # 0.4 + 0.3 reaches 0.7 only with the third token under rounding; 0.65 is reached by two.
    assert set(draw(500, temperature=1.0, top_p=0.65)) == {1, 3}
    assert set(draw(500, temperature=1.0, top_p=0.75)) == {1, 2, 3}
    assert set(draw(50, temperature=1.0, top_p=1e-9)) == {1}


def test_draws_depend_on_the_seed_alone() -> None:
    assert draw(50, temperature=1.0, seed=7) == draw(50, temperature=1.0, seed=7)
    assert draw(50, temperature=1.0, seed=7) != draw(50, temperature=1.0, seed=8)
