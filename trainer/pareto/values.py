"""Whether a field of a training configuration could take a value at all, whatever the others are."""

import types
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from trainer.config import TrainConfig
from trainer.pareto.space import Choices, Range

# Neither whole nor a simple fraction of a range: what the sampler draws between the ends is like it.
_WITHIN = 0.6180339887


def check_values(name: str, given: Choices | Range) -> None:
    """Check all choices, or both ends of a range and a number between them.

    A value that fits its own field but not the others (more heads than the width allows) is a trial's business, told there
    as infeasible. A text for a number, or a dropout of 2, never is anything but a slip.

    Args:
        name: dotted; a name that no configuration has is left to the trial's own check.

    Raises:
        ValueError: one line that names the value and what the field takes.
    """
    field = _field(name)
    if field is None:
        return
    values: tuple[Any, ...]
    if isinstance(given, Choices):
        values = given.choices
    else:
        between = (
            () if given.whole else (float(given.low) + _WITHIN * (float(given.high) - float(given.low)),)
        )
        values = (given.low, given.high, *between)
    kind: TypeAdapter[Any] = TypeAdapter(Annotated[field.annotation, field])  # type: ignore[arg-type]
    for value in values:
        try:
            kind.validate_python(value, strict=True)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
            raise ValueError(f"{name}: {value!r} can't be tried: {problem}") from None


def _field(name: str) -> FieldInfo | None:
    """The field of a dotted name; None where there is none, or where it is a mapping of fields."""
    model: type[BaseModel] | None = TrainConfig
    field: FieldInfo | None = None
    for part in name.split("."):
        field = None if model is None else model.model_fields.get(part)
        if field is None:
            return None
        model = _mapping(field.annotation)
    return field if model is None else None


def _mapping(annotation: Any) -> type[BaseModel] | None:
    """The one kind of mapping that an annotation allows (`Model` or `Model | None`)."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType):
        found = [kind for kind in map(_mapping, get_args(annotation)) if kind is not None]
        others = [kind for kind in get_args(annotation) if kind is not type(None) and _mapping(kind) is None]
        return found[0] if len(found) == 1 and not others else None
    return None
