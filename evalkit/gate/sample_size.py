"""How many samples decide a rule, if what was observed is true."""

import math

from evalkit.gate.condition import Condition
from evalkit.metrics.result import Interval
from evalkit.statistics.power import LARGEST_N, deciding_trials, error_of_bound, error_ratio


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
        enough = deciding_trials(condition.threshold, value, bounds.confidence)
        return None if enough is None else max(n + 1, math.ceil(enough * n / trials))
    end = bounds.low if value > condition.threshold else bounds.high
    if end is None or not math.isfinite(end):
        return None
    error = error_of_bound(value, end, bounds.confidence)
    needed = n * error_ratio(distance, error, bounds.confidence)
    return max(n + 1, math.ceil(needed)) if needed <= LARGEST_N else None
