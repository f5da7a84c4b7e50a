"""What a healthy start of a training looks like."""

import math
from collections.abc import Sequence
from itertools import pairwise

from trainer.baseline.record import BaselineStep, Trend
from trainer.config import TrainConfig

# Largest over smallest gradient norm of a few first steps; an order of magnitude apart is no noise.
_NORM_SPREAD = 10.0


def check_trends(
    steps: Sequence[BaselineStep], loss_before: float | None, loss_after: float | None, config: TrainConfig
) -> tuple[Trend, ...]:
    """Loss falls, gradient norm is stable, the learning rate is as scheduled."""
    return (
        _loss_falls(loss_before, loss_after),
        _norm_is_stable([step.grad_norm for step in steps]),
        _rate_is_as_scheduled([step.learning_rate for step in steps], config),
    )


def _loss_falls(before: float | None, after: float | None) -> Trend:
    holds = before is not None and after is not None and after < before
    return Trend(
        name="loss_falls", holds=holds, evidence=f"{_shown(before)} -> {_shown(after)} nats over all samples"
    )


def _norm_is_stable(norms: list[float | None]) -> Trend:
    known = [norm for norm in norms if norm is not None and math.isfinite(norm) and norm > 0]
    whole = len(known) == len(norms)
    spread = max(known) / min(known) if known else math.inf
    return Trend(
        name="grad_norm_stable",
        holds=whole and spread <= _NORM_SPREAD,
        evidence=f"{', '.join(_shown(norm) for norm in norms)}; at most a factor of {_NORM_SPREAD:g} is expected",
    )


def _rate_is_as_scheduled(rates: list[float], config: TrainConfig) -> Trend:
    """During the warm-up a straight line through the origin, after it never above the peak and never rising."""
    warmup = config.optimizer.warmup_steps
    rising, after = rates[:warmup], rates[warmup:]
    straight = all(math.isclose(rate, rising[0] * n, rel_tol=1e-9) for n, rate in enumerate(rising, start=1))
    falling = all(later <= earlier for earlier, later in pairwise(after))
    return Trend(
        name="learning_rate_as_scheduled",
        holds=straight and falling and all(rate > 0 for rate in rates),
        evidence=f"{', '.join(f'{rate:g}' for rate in rates)}; warm-up over {warmup} steps, then "
        f"{config.optimizer.schedule}",
    )


def _shown(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.6g}"
