"""One training step, compiled: loss and gradients, their check, the update."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, dtype, nn, ops

from evalkit.errors import InputError
from trainer.config import TrainConfig
from trainer.data.packing import Batch
from trainer.loss_scale import GlobalNorm, LossScale
from trainer.model.decoder import CausalLM
from trainer.model.dropout import DropoutMasks
from trainer.optimizer import AdamW
from trainer.schedule import learning_rate


@dataclass(frozen=True)
class StepResult:
    """What one step did.

    Attributes:
        loss: mean negative log-probability of the tokens that the loss looks at, in nats, over all replicas.
        overflow: True where a gradient or the loss wasn't finite: the weights stay as they were.
        loss_scale: the scale that this step used.
        grad_norm: before clipping; None after an overflow.
        learning_rate: of this step.
    """

    loss: float
    overflow: bool
    loss_scale: float
    grad_norm: float | None
    learning_rate: float


def batch_tensors(batch: Batch) -> tuple[Tensor, ...]:
    """token_ids, targets, positions, segments (int32) and weights (float32), each [B, S]."""
    fields = (batch.token_ids, batch.targets, batch.positions, batch.segments, batch.weights)
    return tuple(Tensor(field) for field in fields)


class NllCell(nn.Cell):  # type: ignore[misc]
    """Weighted sum of the negative log-probabilities of a batch's targets, a scalar."""

    def __init__(self, model: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.model = model
        self.log_softmax, self.pick = ops.LogSoftmax(-1), ops.GatherD()
        self.weigh, self.sum = ops.Mul(), ops.ReduceSum()

    def construct(
        self, token_ids: Tensor, targets: Tensor, positions: Tensor, segments: Tensor, weights: Tensor
    ) -> Tensor:
        logits = self.model(token_ids, positions, segments)  # [B*S, V]
        logprobs = self.pick(
            self.log_softmax(logits.astype(dtype.float32)), 1, targets.reshape(-1, 1)
        )  # [B*S, 1]
        return -self.sum(self.weigh(logprobs.reshape(-1), weights.reshape(-1)))


class _ScaledLossCell(nn.Cell):  # type: ignore[misc]
    """The scaled mean loss to differentiate, and the true one beside it."""

    def __init__(self, model: nn.Cell, scale: LossScale) -> None:
        super().__init__(auto_prefix=False)
        self.nll = NllCell(model)
        self.scale = scale

    def construct(
        self,
        token_ids: Tensor,
        targets: Tensor,
        positions: Tensor,
        segments: Tensor,
        weights: Tensor,
        tokens: Tensor,
    ) -> tuple[Tensor, Tensor]:
        loss = self.nll(token_ids, targets, positions, segments, weights) / tokens
        return self.scale.scale(loss), loss


class _GradientCell(nn.Cell):  # type: ignore[misc]
    """The loss, then the scaled gradient of each parameter; with several replicas, their sums."""

    def __init__(
        self, model: nn.Cell, scale: LossScale, parameters: Sequence[Parameter], replicas: int
    ) -> None:
        super().__init__(auto_prefix=False)
        self.differentiate = ms.value_and_grad(_ScaledLossCell(model, scale), None, parameters, has_aux=True)
        self.several = replicas > 1
        if self.several:
            self.sum_gradients = nn.DistributedGradReducer(parameters, mean=False, degree=replicas)
            self.sum_loss = ops.AllReduce()

    def construct(
        self,
        token_ids: Tensor,
        targets: Tensor,
        positions: Tensor,
        segments: Tensor,
        weights: Tensor,
        tokens: Tensor,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        (_, loss), gradients = self.differentiate(token_ids, targets, positions, segments, weights, tokens)
        if self.several:
            return self.sum_loss(loss), self.sum_gradients(gradients)
        return loss, gradients


class _AddCell(nn.Cell):  # type: ignore[misc]
    """Adds the gradients of two batches; both lists come as one sequence of arguments."""

    def construct(self, *both: Tensor) -> tuple[Tensor, ...]:
        count = len(both) // 2
        total: tuple[Tensor, ...] = ()
        for index in range(count):
            total = (*total, both[index] + both[count + index])
        return total


class _UpdateCell(nn.Cell):  # type: ignore[misc]
    """Multiplies gradients by `factor` (one over the loss scale, times the clipping) and updates the weights."""

    def __init__(self, optimizer: AdamW) -> None:
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer

    def construct(
        self, factor: Tensor, rate: Tensor, epsilon: Tensor, decay: Tensor, *gradients: Tensor
    ) -> Tensor:
        final: tuple[Tensor, ...] = ()
        for gradient in gradients:
            final = (*final, gradient * factor)
        return self.optimizer(final, rate, epsilon, decay)


class TrainStep(nn.Cell):  # type: ignore[misc]
    """Owns the optimizer and the loss scale of one model; a Cell, so that callbacks find in it what they find in
    MindSpore's own train cells: `network`, `optimizer`, `scale_sense` and all parameters.

    Expects graph mode: a compiled Cell runs its graph while the caller waits quietly. (In PyNative mode a compiled
    function runs behind a queue on which the caller spins; on two cores that makes a step two to three times slower.)
    """

    def __init__(self, model: CausalLM, config: TrainConfig, rank: int = 0) -> None:
        super().__init__(auto_prefix=False)
        self.config, self.rank = config, rank
        self.scale = LossScale(config.precision.loss_scale)
        self.scale_sense = self.scale.scaler.scale_value
        self.network = model
        self.optimizer = AdamW(model.trainable_params(), config.optimizer)
        rows = config.batch_size * config.data.sequence_length
        self._masks = DropoutMasks(model, (rows, config.model.hidden_size))
        self._gradients = _GradientCell(model, self.scale, self.optimizer.parameters, config.parallel.data)
        self._add, self._norm, self._update = _AddCell(), GlobalNorm(), _UpdateCell(self.optimizer)
        self._nll = NllCell(model)

    def __call__(self, step: int, batches: Sequence[Batch], tokens: float | None = None) -> StepResult:
        """Step number `step` (from 1) over one batch, or over several whose gradients add up.

        Args:
            step: decides the learning rate and the dropout masks.
            batches: this replica's.
            tokens: how many tokens the loss of all replicas looks at; None: those of `batches`.
        """
        rate = learning_rate(step, self.config)
        if tokens is None:
            tokens = sum(float(batch.weights.sum()) for batch in batches)
        divisor = Tensor(np.float32(max(1.0, tokens)))
        losses: list[Tensor] = []
        gradients: tuple[Tensor, ...] = ()
        for part, batch in enumerate(batches):
            self._masks.draw((self.config.seed, step, part, self.rank))
            part_loss, new = self._gradients(*batch_tensors(batch), divisor)
            losses.append(part_loss)
            gradients = self._add(*gradients, *new) if gradients else new
        used_scale = self.scale.value
        grad_norm = float(self._norm(*gradients).asnumpy()) / used_scale
        loss = math.fsum(float(part_loss.asnumpy()) for part_loss in losses)
        ok = math.isfinite(grad_norm) and math.isfinite(loss)
        if not ok and self.config.debug:
            raise InputError(f"step {step}: {self._culprits(gradients)}; the loss is {loss:g}")
        if ok:
            clip = min(1.0, self.config.optimizer.clip_norm / (grad_norm + 1e-6))
            self._update(Tensor(np.float32(clip / used_scale)), *self.optimizer.scalars(rate), *gradients)
        self.optimizer.learning_rate.set_data(Tensor(rate, dtype.float32))
        self.scale.adjust(ok)
        return StepResult(
            loss=loss,
            overflow=not ok,
            loss_scale=used_scale,
            grad_norm=grad_norm if ok else None,
            learning_rate=rate,
        )

    def _culprits(self, gradients: tuple[Tensor, ...]) -> str:
        names = [
            parameter.name
            for parameter, gradient in zip(self.optimizer.parameters, gradients, strict=True)
            if not np.isfinite(gradient.asnumpy()).all()
        ]
        return f"gradients that aren't finite: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"

    def perplexity(self, batches: Sequence[Batch]) -> float | None:
        """Token perplexity exp(Σ nll / Σ tokens) of validation batches; None where it isn't finite.

        The model's training mode is restored; no random number is drawn.
        """
        self.network.set_train(False)
        try:
            nll = math.fsum(float(self._nll(*batch_tensors(batch)).asnumpy()) for batch in batches)
        finally:
            self.network.set_train(True)
        mean = nll / sum(float(batch.weights.sum()) for batch in batches)
        return math.exp(mean) if math.isfinite(mean) and mean < 700 else None
