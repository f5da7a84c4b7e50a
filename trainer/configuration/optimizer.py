"""`optimizer`: AdamW, its schedule and what decays."""

from typing import Literal

from pydantic import Field

from trainer.configuration.strict import Listed, Strict

ParameterGroup = Literal["norm", "bias", "embedding"]


class OptimizerConfig(Strict):
    """AdamW with warm-up and a schedule.

    Attributes:
        learning_rate: the peak, for one data-parallel replica.
        schedule: after the warm-up: cosine or linear down to a tenth of the peak at the last step, or constant.
        learning_rate_scaling: the peak is multiplied by the data-parallel degree (linear), its square root, or not.
        weight_decay: decoupled, of every parameter but those of the groups in `no_decay`.
        no_decay: norm (weights and biases of norms), bias (of linear layers), embedding (tables of tokens and
            positions; a tied head is one).
        clip_norm: gradients are scaled down to this global norm.
    """

    name: Literal["adamw"] = "adamw"
    learning_rate: float = Field(gt=0)
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_steps: int = Field(default=0, ge=0)
    learning_rate_scaling: Literal["none", "linear", "sqrt"] = "none"
    weight_decay: float = Field(default=0.01, ge=0)
    no_decay: Listed[ParameterGroup] = ("norm", "bias")
    clip_norm: float = Field(default=1.0, gt=0)
