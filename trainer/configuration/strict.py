"""What the parts of the configuration share."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]


class Strict(BaseModel):
    """Unknown keys, infinities and NaN are errors; values don't change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
