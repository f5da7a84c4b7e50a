"""How many samples decide a rule, if what was observed is true."""

import math
from statistics import NormalDist

from evalkit.gate.condition import Condition
from evalkit.metrics.result import Interval

POWER = 0.95
_LARGEST = 10**9
# Above this many trials a binomial is as good as normal, and the exact search would be slow.
_EXACT_LIMIT = 20_000


def deciding_n(
    condition: Condition, value: float, bounds: Interval, n: int, clusters: int | None
) -> int | None:
    """The n at which the rule is decided with 95 % power if `value` is the true value.

    Decided means PASS where the value lies on the good side of the threshold, FAIL where it lies beyond it.
    Shares with exact binomial bounds are searched exactly; for all others the standard error is taken from
    the distance of the bound on the threshold's side and shrinks with the square root of n:
    n' = n ((z_confidence + z_power) se / |value - threshold|)^2.

    Args:
        condition: of the rule.
        value: observed.
        bounds: one-sided ends around it.
        n, clusters: units and independent units that gave them; both are meant to grow in proportion.

    Returns:
        None where no sample size decides (the value lies exactly at the threshold) or it can't be told.
    """
    distance = abs(value - condition.threshold)
    if distance == 0 or not math.isfinite(distance) or n < 1:
        return None
    exact = bounds.method.startswith("exact-binomial")
    if exact and (bounds.method == "exact-binomial" or value in (0.0, 1.0)):
        trials = n if bounds.method == "exact-binomial" or not clusters else clusters
        enough = _deciding_trials(condition.threshold, value, bounds.confidence)
        return None if enough is None else max(n + 1, math.ceil(enough * n / trials))
    end = bounds.low if value > condition.threshold else bounds.high
    if end is None or not math.isfinite(end):
        return None
    normal = NormalDist()
    spread = abs(value - end) / normal.inv_cdf(bounds.confidence)
    factor = (normal.inv_cdf(bounds.confidence) + normal.inv_cdf(POWER)) * spread / distance
    needed = n * factor * factor
    return max(n + 1, math.ceil(needed)) if needed <= _LARGEST else None


def _deciding_trials(threshold: float, share: float, confidence: float) -> int | None:
    """Smallest number of trials whose exact bound is beyond `threshold` with 95 % power at `share`."""
    # Decided on the far side of the threshold is the mirror image of decided on the near side.
    if share < threshold:
        threshold, share = 1 - threshold, 1 - share
    if not 0 < threshold < 1:
        return None
    start = _normal_trials(threshold, share, confidence)
    if start > _EXACT_LIMIT:
        return start if start <= _LARGEST else None
    trials = max(1, start // 2)
    while not _power(trials, threshold, share, confidence) >= POWER:
        trials += 1
        if trials > 4 * start + 1000:
            return None
    return trials


def _normal_trials(threshold: float, share: float, confidence: float) -> int:
    normal = NormalDist()
    at_threshold = normal.inv_cdf(confidence) * math.sqrt(threshold * (1 - threshold))
    at_share = normal.inv_cdf(POWER) * math.sqrt(share * (1 - share))
    return math.ceil(((at_threshold + at_share) / (share - threshold)) ** 2)


def _power(trials: int, threshold: float, share: float, confidence: float) -> float:
    """Probability that the exact lower bound of `trials` outcomes at `share` lies above `threshold`."""
    from scipy.special import bdtrc

    # The lower bound is above the threshold exactly when P(at least s | threshold) < 1 - confidence.
    low, high = 0, trials + 1
    while low < high:
        middle = (low + high) // 2
        if middle > 0 and float(bdtrc(middle - 1, trials, threshold)) < 1 - confidence:
            high = middle
        else:
            low = middle + 1
    if low > trials:
        return 0.0
    return float(bdtrc(low - 1, trials, share)) if low > 0 else 1.0
