"""AdamW."""

import math
from collections.abc import Collection

from mindspore import Parameter, ParameterTuple, Tensor, dtype, nn, ops

from trainer.configuration.optimizer import OptimizerConfig, ParameterGroup

# As for GPT-3 (Brown et al. 2020): the second moment follows faster than with Adam's own 0.999.
_BETA1, _BETA2, _EPSILON = 0.9, 0.95, 1e-8


def parameter_group(name: str) -> ParameterGroup | None:
    """The group of a model's parameter by its name; None: a matrix of a layer, or an untied head."""
    if "norm." in name:
        return "norm"
    if name.endswith(".bias"):
        return "bias"
    return "embedding" if ".embed_" in name else None


class AdamW(nn.Cell):  # type: ignore[misc]
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019); the groups in `no_decay` don't decay.

    MindSpore's fused kernel does p ← p - rate · (m / (sqrt(v) + eps) + decay · p) without bias correction. The
    correction is put into its scalars: with c1 = 1 - β1^t and c2 = 1 - β2^t, rate = lr · sqrt(c2) / c1,
    eps = ε · sqrt(c2), decay = λ · lr / rate give p ← p - lr · (m/c1 / (sqrt(v/c2) + ε) + λ · p) exactly.

    Attributes:
        parameters: what it updates.
        first, second: the moments, one of each a parameter.
        global_step: updates done, a Parameter; skipped steps don't count.
        learning_rate: of the last step, a Parameter for callbacks to read; the schedule writes it.
    """

    def __init__(self, parameters: list[Parameter], config: OptimizerConfig) -> None:
        super().__init__(auto_prefix=False)
        self.weight_decay = config.weight_decay
        self.applied = 0
        self.parameters = ParameterTuple(parameters)
        self.first = ParameterTuple(_moments("first_moment", parameters))
        self.second = ParameterTuple(_moments("second_moment", parameters))
        self.global_step = Parameter(Tensor(0, dtype.int32), name="global_step", requires_grad=False)
        self.learning_rate = Parameter(Tensor(0.0, dtype.float32), name="learning_rate", requires_grad=False)
        self._decays = decaying(parameters, config.no_decay)
        self._kernel = ops.AdamWeightDecay()

    def restore(self, updates: int) -> None:
        """Go on after `updates` updates; the moments are filled by whoever has them."""
        self.applied = updates
        self.global_step.set_data(Tensor(updates, dtype.int32))

    def scalars(self, rate: float) -> tuple[Tensor, Tensor, Tensor]:
        """Rate, epsilon and decay for the kernel at the next update."""
        self.restore(self.applied + 1)
        first, second = 1 - _BETA1**self.applied, 1 - _BETA2**self.applied
        kernel_rate = rate * math.sqrt(second) / first
        values = (kernel_rate, _EPSILON * math.sqrt(second), self.weight_decay * rate / kernel_rate)
        rate_now, epsilon, decay = (Tensor(value, dtype.float32) for value in values)
        return rate_now, epsilon, decay

    def construct(
        self, gradients: tuple[Tensor, ...], rate: Tensor, epsilon: Tensor, decay: Tensor
    ) -> Tensor:
        """Update every parameter in place; returns `rate`, ready when all updates are."""
        no_decay = decay * 0.0
        for index, gradient in enumerate(gradients):
            done = self._kernel(
                self.parameters[index],
                self.first[index],
                self.second[index],
                rate,
                _BETA1,
                _BETA2,
                epsilon,
                decay if self._decays[index] else no_decay,
                gradient,
            )
            rate = ops.depend(rate, done)
        return rate


def decaying(parameters: list[Parameter], no_decay: Collection[ParameterGroup]) -> list[bool]:
    """Whether each parameter decays."""
    return [parameter_group(parameter.name) not in no_decay for parameter in parameters]


def _moments(kind: str, parameters: list[Parameter]) -> list[Parameter]:
    return [
        Parameter(ops.zeros_like(parameter), name=f"{kind}.{parameter.name}", requires_grad=False)
        for parameter in parameters
    ]
