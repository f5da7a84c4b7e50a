"""Measuring the validation data during training."""

import math
import time
from typing import Any

from trainer.configuration.running import EvaluationConfig
from trainer.data.pipeline import TrainingData
from trainer.step import TrainStep


class Validation:
    """When to measure, what came out, and which step was the best.

    Attributes:
        perplexity: of the last measurement; None where there was none, or it isn't finite.
        best: step and perplexity of the best so far.
    """

    def __init__(
        self, plan: EvaluationConfig | None, steps: int, data: TrainingData, step: TrainStep
    ) -> None:
        self._plan, self._steps, self._data, self._step = plan, steps, data, step
        self.perplexity: float | None = None
        self.best: tuple[int, float] | None = None

    @property
    def improved(self) -> bool:
        """Whether the last measurement is the best."""
        return self.best is not None and self.best[1] == self.perplexity

    @property
    def mean_loss(self) -> float | None:
        """Nats a token in the last measurement."""
        return None if self.perplexity is None else math.log(self.perplexity)

    def measure(self, number: int, epoch: int, dropped: str | None) -> dict[str, Any] | None:
        """The record for evaluations.jsonl, if step `number` asks for a measurement.

        Args:
            number: the step that was just done.
            epoch: of its data.
            dropped: how the loss scale fell in it; None if it didn't.
        """
        plan = self._plan
        if plan is None:
            return None
        regular = number % plan.every == 0 or number == self._steps
        after_drop = plan.on_loss_scale_drop and dropped is not None
        if not regular and not after_drop:
            return None
        began = time.monotonic_ns()
        self.perplexity = self._step.perplexity(self._data.validation)
        if self.perplexity is not None and (self.best is None or self.perplexity < self.best[1]):
            self.best = (number, self.perplexity)
        return {
            "step": number,
            "epoch": epoch,
            "trigger": "loss_scale_drop" if after_drop else "every",
            "reason": dropped if after_drop else f"every {plan.every} steps",
            "loss_scale": self._step.scale.value,
            "metrics": [{"name": "perplexity/token", "value": self.perplexity}],
            "elapsed_ns": time.monotonic_ns() - began,
        }
