"""Weights that give the validation set the marginal distributions of other traffic.

Raking is iterative proportional fitting (Deming & Stephan 1940, Annals of Mathematical Statistics 11): each feature in turn,
the weights of a bin are scaled to its share in the target, until none moves. Caps are applied within the iteration (trimmed
raking), so that what a cap takes from one sample goes to others of its bins.
"""

from collections.abc import Sequence

import numpy as np

from evalkit.metrics.estimators import FloatArray
from evalkit.resampling.bins import CodeArray

_ROUNDS = 500
_TOLERANCE = 1e-9
_NOTHING = 1e-12


def rake(codes: CodeArray, targets: Sequence[FloatArray], cap: float) -> FloatArray:
    """Weights of mean 1.

    Args:
        codes: bin of each validation text by feature, shape (texts, features).
        targets: of each feature the wanted share of its bins; what falls into bins without a validation text is left out
            and the rest scaled up.
        cap: largest weight, as a multiple of the mean.

    Returns:
        Shape (texts,). All 0 where no bin of the target holds a validation text. Where the shares can't be met (a cap, or
        features that contradict each other) the weights of the last round.
    """
    size = len(codes)
    weights = np.ones(size)
    wanted = []
    for index, target in enumerate(targets):
        covered = np.where(np.bincount(codes[:, index], minlength=len(target)) > 0, target, 0.0)
        if covered.sum() == 0:
            return np.zeros(size)
        wanted.append(covered / covered.sum())
    for _ in range(_ROUNDS):
        before = weights
        for index, target in enumerate(wanted):
            held = np.bincount(codes[:, index], weights, len(target))
            factors = np.divide(target * size, held, out=np.zeros_like(held), where=held > 0)
            weights = weights * factors[codes[:, index]]
        weights = capped(weights, cap)
        if np.abs(weights - before).max() <= _TOLERANCE * cap:
            break
    return weights


def capped(weights: FloatArray, cap: float) -> FloatArray:
    """Weights of mean 1, none above `cap`; what a cap takes off is spread over the others in proportion.

    Where too few weights are above 0 for that, all of those are equal. All 0 stay all 0.
    """
    largest = weights.max()
    if largest == 0:
        return weights
    # What is next to nothing is nothing: no sum overflows, and a cap has something to spread over.
    weights = np.where(weights / largest < _NOTHING, 0.0, weights / largest)
    weights = weights * (len(weights) / weights.sum())
    positive = int(np.count_nonzero(weights))
    if positive * cap <= len(weights):
        return np.where(weights > 0, len(weights) / positive, 0.0)
    held = np.zeros(len(weights), dtype=np.bool_)
    while (over := (weights > cap) & ~held).any():
        held |= over
        free = weights[~held].sum()
        weights = np.where(held, cap, weights * ((len(weights) - cap * held.sum()) / free))
    return weights
