"""Choosing tokens."""

import numpy as np

from sandbox.domain import Sampling
from sandbox.engine.sampler import Sampler

LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))


def draw(count: int, **settings: float) -> list[int]:
    sampler = Sampler(Sampling(max_new_tokens=1, **settings))  # type: ignore[arg-type]
    return [sampler.choose(LOGITS, place) for place in range(count)]


def test_greedy_takes_the_best_and_of_equals_the_first() -> None:
    assert draw(3) == [1, 1, 1]
    assert Sampler(Sampling(1)).choose(np.array([0, 2, 2], np.float32), 0) == 1


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


def test_a_draw_is_a_function_of_the_seed_and_the_place() -> None:
    sampler = Sampler(Sampling(1, temperature=1.0, seed=2**64 - 1))
    forwards = [sampler.choose(LOGITS, place) for place in range(50)]
    backwards = [sampler.choose(LOGITS, place) for place in reversed(range(50))]
    assert forwards == backwards[::-1]


def test_a_large_vocabulary_is_cut_as_a_small_one_is() -> None:
    """The shortcuts for large vocabularies against sorting everything, with ties."""
    random = np.random.default_rng(0)
    for spread in (0.1, 3.0):
        logits = np.round(random.normal(0, spread, 3000), 1).astype(np.float32)
        order = np.argsort(-logits, kind="stable")
        for top_k, top_p in ((0, 0.3), (0, 0.999), (40, 1.0), (40, 0.5), (700, 0.9)):
            sampler = Sampler(Sampling(1, temperature=0.8, top_k=top_k, top_p=top_p, seed=1))
            kept = order[: top_k or None]
            mass = np.cumsum(np.exp((logits[kept] - logits.max()).astype(np.float64) / 0.8))
            kept = kept[: np.searchsorted(mass, top_p * mass[-1]) + 1]
            drawn = {sampler.choose(logits, place) for place in range(300)}
            assert drawn <= set(kept.tolist())
