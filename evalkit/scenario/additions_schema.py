"""Parts of the scenario file by which a user adds to the metrics, and what every part is built on."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator


class Strict(BaseModel):
    """Unknown keys, values of another type (a quoted number, `true` for 1), NaN and infinities are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


def _no_flag(version: Any) -> Any:
    # For Python True equals 1; for whoever writes `version: true` it doesn't.
    if isinstance(version, bool):
        raise ValueError("Input should be 1")
    return version


Version1 = Annotated[Literal[1], BeforeValidator(_no_flag)]
Share = Annotated[float, Field(gt=0, lt=1)]
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]

# Code of the user: `module:attr`, or the name of an entry point.
Reference = Annotated[str, Field(min_length=1)]

_CLASSES = ("oov", "domain", "frequency")


def _class_name(name: str) -> str:
    if name not in _CLASSES and not name.startswith("own/"):
        raise ValueError(f"isn't a class; choose from {', '.join(_CLASSES)}, and own/NAME of classes.own")
    return name


# What may stand in the precedence of the token classes.
ClassName = Annotated[str, AfterValidator(_class_name)]

ModelT = TypeVar("ModelT")


def names_once(model: ModelT, names: Sequence[str], field: str) -> ModelT:
    """`model`, if no name stands twice in its field.

    Raises:
        ValueError: one does.
    """
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise ValueError(f"{field} names {repeated[0]!r} twice")
    return model


class View(Strict):
    """Tokens that are looked at beside the classes; views may overlap. Exactly one way to select them."""

    name: Identifier
    regex: str | None = None
    tag: str | None = None
    callable: Reference | None = None

    @model_validator(mode="after")
    def _one_way(self) -> "View":
        given = [name for name in ("regex", "tag", "callable") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of regex, tag, callable (found: {', '.join(given) or 'none'})"
            )
        try:
            re.compile(self.regex or "")
        except re.error as error:
            raise ValueError(f"regex isn't a regular expression: {error}") from None
        return self


class Business(Strict):
    """A business figure, made from a metric: as it is, by a history of past releases, or by own code."""

    name: Identifier
    source: str = Field(alias="from")
    k: int | None = Field(default=None, ge=1)
    slice: str | None = None
    version: int = Field(default=1, ge=1)
    calibration: str | None = None
    fit: Literal["linear", "isotonic"] = "linear"
    mapping: Reference | None = None
    unit: str | None = None
    direction: Literal["lower", "higher"] | None = None

    @model_validator(mode="after")
    def _one_way(self) -> "Business":
        if self.calibration is not None and self.mapping is not None:
            raise ValueError("give calibration or mapping, not both")
        if "fit" in self.model_fields_set and self.calibration is None:
            raise ValueError("fit goes with calibration")
        if (self.source == "dialogue/pass_hat_k") != (self.k is not None):
            raise ValueError("k goes with dialogue/pass_hat_k, and it needs it")
        return self


class Resample(Strict):
    """The texts re-weighted to look like the `target` texts: metrics of the slice `resampled`, beside the plain ones.

    `size` draws so many texts by their weights instead. See `evalkit.resampling.reweighting.ReweightingSettings`.
    """

    target: str
    features: list[Reference] = Field(default=["token_length", "entity_density"], min_length=1)
    size: int | None = Field(default=None, ge=1)
    method: Literal["raking", "classifier"] = "raking"
    bins: int = Field(default=8, ge=2, le=100)
    cap: float = Field(default=10.0, gt=1)
    min_effective: float = Field(default=50.0, ge=1)
    max_uncovered: float = Field(default=0.1, ge=0, lt=1)
    max_distance: float = Field(default=0.15, ge=0, lt=1)

    @model_validator(mode="after")
    def _features_once(self) -> "Resample":
        return names_once(self, self.features, "features")
