"""Reliability over repeated trials: pass_hat_k, the chance that k trials of a dialogue all pass."""

from math import comb


def pass_hat_k(successes: int, trials: int, k: int) -> float | None:
    """C(c, k) / C(n, k): unbiased estimate that k trials all pass (Yao et al. 2024, tau-bench, section 3).

    The plug-in (c/n)^k would be biased upwards.

    Args:
        successes: c, trials that passed.
        trials: n, trials that gave a result.
        k: at least 1.

    Returns:
        None where n < k: undefined, neither 0 nor 1.

    Raises:
        ValueError: not 0 <= c <= n, or k < 1.
    """
    if not 0 <= successes <= trials or k < 1:
        raise ValueError(f"0 <= successes <= trials and k >= 1 are needed, got {successes}, {trials}, k={k}")
    return comb(successes, k) / comb(trials, k) if trials >= k else None
