"""pass_hat_k against its definition by enumeration."""

from itertools import combinations

import pytest

from evalkit.statistics.passk import pass_hat_k


@pytest.mark.parametrize("trials", range(1, 7))
def test_it_is_the_share_of_k_subsets_that_all_passed(trials: int) -> None:
    for successes in range(trials + 1):
        outcomes = [True] * successes + [False] * (trials - successes)
        for k in range(1, trials + 1):
            subsets = list(combinations(outcomes, k))
            assert pass_hat_k(successes, trials, k) == pytest.approx(sum(map(all, subsets)) / len(subsets))


def test_the_published_example() -> None:
    assert pass_hat_k(6, 8, 4) == pytest.approx(0.2143, abs=1e-4)


def test_it_is_undefined_with_fewer_trials_than_k() -> None:
    assert pass_hat_k(2, 2, 3) is None
    assert pass_hat_k(0, 0, 1) is None


@pytest.mark.parametrize(("successes", "trials", "k"), [(3, 2, 1), (-1, 2, 1), (1, 2, 0)])
def test_impossible_counts_are_refused(successes: int, trials: int, k: int) -> None:
    with pytest.raises(ValueError, match="0 <= successes <= trials"):
        pass_hat_k(successes, trials, k)
