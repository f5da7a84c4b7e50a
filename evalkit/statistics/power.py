"""Power: how likely a sample of some size decides a rule, and which size decides it."""

import math
from statistics import NormalDist

POWER = 0.95
LARGEST_N = 10**9
# Above this many trials a binomial is as good as normal, and the exact search would be slow.
_EXACT_LIMIT = 20_000


def binomial_power(trials: int, threshold: float, share: float, confidence: float) -> float:
    """Probability that the exact one-sided bound of `trials` outcomes lies beyond `threshold`, on the side of `share`.

    Args:
        trials: independent outcomes.
        threshold, share: the threshold and the true share, both in [0, 1].
        confidence: of the one-sided bound (Clopper-Pearson).
    """
    from scipy.special import bdtrc

    # Decided on the far side of the threshold is the mirror image of decided on the near side.
    if share < threshold:
        threshold, share = 1 - threshold, 1 - share
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


def deciding_trials(threshold: float, share: float, confidence: float) -> int | None:
    """Smallest number of trials whose exact bound is beyond `threshold` with 95 % power at `share`; None if there is none."""
    if share < threshold:
        threshold, share = 1 - threshold, 1 - share
    if not 0 < threshold < 1 or not 0 <= share <= 1 or share == threshold:
        return None
    start = _normal_trials(threshold, share, confidence)
    if start > _EXACT_LIMIT:
        return start if start <= LARGEST_N else None
    trials = max(1, start // 2)
    while not binomial_power(trials, threshold, share, confidence) >= POWER:
        trials += 1
        if trials > 4 * start + 1000:
            return None
    return trials


def assured_power(distance: float, error: float, doubt: float, confidence: float) -> float:
    """Probability that a normal bound lies beyond a threshold, where the true value itself is only known within `doubt`.

    The mean of the power over a normal distribution of the true value (assurance: O'Hagan, Stevens & Campbell 2005):
    Phi((distance - z error) / sqrt(error^2 + doubt^2)). With no doubt it is the power at `distance`.

    Args:
        distance: of the assumed value from the threshold, at least 0.
        error: standard error of the planned sample, above 0.
        doubt: standard error of the assumed value; 0 where it is taken for true.
        confidence: of the one-sided bound.
    """
    normal = NormalDist()
    return normal.cdf((distance - normal.inv_cdf(confidence) * error) / math.hypot(error, doubt))


def assured_ratio(distance: float, error: float, doubt: float, confidence: float) -> float | None:
    """How many times as large a sample must be for 95 % of `assured_power`; None where no size reaches it.

    The larger the sample the smaller its standard error s; s is the positive root of
    (distance - z_confidence s)^2 = z_power^2 (s^2 + doubt^2) below distance / z_confidence.

    Args:
        distance, doubt, confidence: as in `assured_power`.
        error: standard error of a sample of size 1.
    """
    normal = NormalDist()
    z, power = normal.inv_cdf(confidence), normal.inv_cdf(POWER)
    rest = distance**2 - (power * doubt) ** 2
    if not rest > 0:
        return None
    # a s^2 + b s + rest = 0, its smaller positive root in the form that loses no digits.
    a, b = z * z - power * power, -2 * z * distance
    root = 2 * rest / (-b + math.sqrt(max(0.0, b * b - 4 * a * rest)))
    return float((error / root) ** 2)


def error_ratio(distance: float, error: float, confidence: float) -> float:
    """How many times as large a sample must be for 95 % power: ((z_confidence + z_power) error / distance)^2."""
    normal = NormalDist()
    return ((normal.inv_cdf(confidence) + normal.inv_cdf(POWER)) * error / distance) ** 2


def error_of_bound(value: float, end: float, confidence: float) -> float:
    """The standard error that a one-sided end at `confidence` speaks of."""
    return abs(value - end) / NormalDist().inv_cdf(confidence)


def _normal_trials(threshold: float, share: float, confidence: float) -> int:
    normal = NormalDist()
    at_threshold = normal.inv_cdf(confidence) * math.sqrt(threshold * (1 - threshold))
    at_share = normal.inv_cdf(POWER) * math.sqrt(share * (1 - share))
    return math.ceil(((at_threshold + at_share) / (share - threshold)) ** 2)
