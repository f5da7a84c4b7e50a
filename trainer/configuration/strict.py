"""What the parts of the configuration share."""

from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

Item = TypeVar("Item")
Positive = Annotated[int, Field(gt=0)]
# A strict tuple would refuse a file's lists; the items stay strict.
Listed = Annotated[tuple[Item, ...], Field(strict=False)]


def _distinct(values: tuple[Item, ...]) -> tuple[Item, ...]:
    for place, value in enumerate(values):
        if value in values[:place]:
            raise ValueError(f"{value!r} is given twice; keep one of them")
    return values


# What is tried or counted once for each item.
Distinct = Annotated[Listed[Item], AfterValidator(_distinct)]


class Strict(BaseModel):
    """Unknown keys, values of another kind (`true`, "3" or 3.0 for 3), infinities and NaN are errors; values don't change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    @field_validator("version", mode="before", check_fields=False)
    @classmethod
    def _whole(cls, version: Any) -> Any:
        # Python takes true and 1.0 for the literal 1.
        if not isinstance(version, int) or isinstance(version, bool):
            raise ValueError("a whole number is needed")
        return version
