"""AdamW and the learning-rate schedule."""

import math

from mindspore import Parameter, Tensor, dtype, ops

# As for GPT-3 (Brown et al. 2020): the second moment follows faster than with Adam's own 0.999.
_BETA1, _BETA2, _EPSILON = 0.9, 0.95, 1e-8
_FLOOR = 0.1


def learning_rate(step: int, *, peak: float, warmup_steps: int, steps: int) -> float:
    """Linear warm-up to `peak`, then a cosine down to a tenth of it at the last step. Steps count from 1."""
    if step <= warmup_steps:
        return peak * step / warmup_steps
    progress = (step - warmup_steps) / (steps - warmup_steps)
    return peak * (_FLOOR + (1 - _FLOOR) * 0.5 * (1 + math.cos(math.pi * progress)))


class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019); matrices decay, norms and biases don't.

    MindSpore's fused kernel does p ← p - rate · (m / (sqrt(v) + eps) + decay · p) without bias correction. The
    correction is put into its scalars: with c1 = 1 - β1^t and c2 = 1 - β2^t, rate = lr · sqrt(c2) / c1,
    eps = ε · sqrt(c2), decay = λ · lr / rate give p ← p - lr · (m/c1 / (sqrt(v/c2) + ε) + λ · p) exactly.
    """

    def __init__(self, parameters: list[Parameter], weight_decay: float) -> None:
        self.parameters = parameters
        self.weight_decay = weight_decay
        self.applied = 0
        self._first = [Parameter(ops.zeros_like(p), name=f"first_moment.{p.name}") for p in parameters]
        self._second = [Parameter(ops.zeros_like(p), name=f"second_moment.{p.name}") for p in parameters]
        self._decays = [p.ndim >= 2 for p in parameters]
        self._kernel = ops.AdamWeightDecay()

    def scalars(self, rate: float) -> tuple[Tensor, Tensor, Tensor]:
        """Rate, epsilon and decay for the kernel at the next update."""
        self.applied += 1
        first, second = 1 - _BETA1**self.applied, 1 - _BETA2**self.applied
        kernel_rate = rate * math.sqrt(second) / first
        values = (kernel_rate, _EPSILON * math.sqrt(second), self.weight_decay * rate / kernel_rate)
        rate_now, epsilon, decay = (Tensor(value, dtype.float32) for value in values)
        return rate_now, epsilon, decay

    def update(self, gradients: tuple[Tensor, ...], rate: Tensor, epsilon: Tensor, decay: Tensor) -> Tensor:
        """Update every parameter in place (inside a graph); returns `rate`, ready when all updates are."""
        no_decay = decay * 0.0
        for index, gradient in enumerate(gradients):
            done = self._kernel(
                self.parameters[index],
                self._first[index],
                self._second[index],
                rate,
                _BETA1,
                _BETA2,
                epsilon,
                decay if self._decays[index] else no_decay,
                gradient,
            )
            rate = ops.depend(rate, done)
        return rate
