"""`checkpoints`, `evaluation` and `profile`: what a run writes beside its log."""

from typing import Literal

from trainer.configuration.strict import Positive, Strict


class CheckpointConfig(Strict):
    """Write a checkpoint every `every` steps (and after the last); keep the last few and the best."""

    every: Positive
    keep_last: Positive = 3
    keep_best: Literal["perplexity/token"] | None = None


class EvaluationConfig(Strict):
    """Measure the validation data during training."""

    every: Positive
    on_loss_scale_drop: bool = False
    scenario: str | None = None


class ProfileConfig(Strict):
    """Which steps `--profile` records: `steps` of them from the `first_step`-th that this process does (the first one
    compiles the graphs).
    """

    first_step: Positive = 3
    steps: Positive = 3
