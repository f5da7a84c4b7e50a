"""The learning rate of each step."""

import math

from trainer.config import TrainConfig

# What is left of the peak at the last step, except under the constant schedule.
_FLOOR = 0.1


def learning_rate(step: int, config: TrainConfig) -> float:
    """Of step `step` (from 1): linear warm-up to the peak, then the schedule of `config.optimizer`.

    The peak is the configured rate times the factor of the data-parallel degree n: n (linear), sqrt(n) (sqrt) or 1.
    """
    optimizer, replicas = config.optimizer, config.parallel.data
    factor = {"none": 1.0, "linear": float(replicas), "sqrt": math.sqrt(replicas)}
    peak = optimizer.learning_rate * factor[optimizer.learning_rate_scaling]
    if step <= optimizer.warmup_steps:
        return peak * step / optimizer.warmup_steps
    progress = (step - optimizer.warmup_steps) / (config.steps - optimizer.warmup_steps)
    if optimizer.schedule == "constant":
        return peak
    left = 1 - progress if optimizer.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return peak * (_FLOOR + (1 - _FLOOR) * left)
