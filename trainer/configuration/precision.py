"""`precision`: the level, what stays float32, and the loss scale."""

from typing import Literal

from pydantic import Field, model_validator

from trainer.configuration.strict import Listed, Positive, Strict

# Norms, softmax and loss, the rotary turn and the residual stream are float32 at every level.
Operation = Literal["projections", "attention_scores", "attention_values", "feed_forward", "head"]


class LossScaleConfig(Strict):
    """Dynamic loss scale: divided by `factor` at an overflow, multiplied after `window` steps without one; it stays
    within `min` and `max`.
    """

    initial: float = Field(default=65536.0, ge=1)
    factor: int = Field(default=2, gt=1)
    window: Positive = 1000
    min: float = Field(default=1.0, ge=1)
    max: float = Field(default=16777216.0, ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> "LossScaleConfig":
        if not self.min <= self.initial <= self.max:
            raise ValueError(f"initial {self.initial:g} isn't within min {self.min:g} and max {self.max:g}")
        return self


class PrecisionConfig(Strict):
    """Numeric precision.

    Attributes:
        level: O0 is float32 throughout; O2 multiplies matrices in `dtype`, with float32 weights behind them.
        dtype: of the matrix products at O2; bfloat16 needs an Ascend device.
        float32: products that stay float32 at O2.
        loss_scale: dynamic loss scaling.
    """

    level: Literal["O0", "O2"] = "O0"
    dtype: Literal["float16", "bfloat16"] = "float16"
    float32: Listed[Operation] = ()
    loss_scale: LossScaleConfig = LossScaleConfig()
