"""The search's file, `version: 1`: settings to try by real runs, or a table of runs that were made."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from evalkit.yaml_source import YamlSource
from trainer.configuration.strict import Distinct, Listed, Positive, Strict
from trainer.regular_file import require_regular

Value = bool | int | float | str | None
Direction = Literal["minimize", "maximize"]


class Choices(Strict):
    """One of these values."""

    choices: Annotated[Distinct[Value], Field(min_length=1, max_length=1000)]


class Range(Strict):
    """A number between `low` and `high`, both included; whole where both are. `log`: by its logarithm."""

    low: int | float
    high: int | float
    log: bool = False

    @model_validator(mode="after")
    def _ordered(self) -> "Range":
        if not self.low < self.high:
            raise ValueError(f"low {self.low} isn't below high {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"log needs a low above 0, got {self.low}")
        return self

    @property
    def whole(self) -> bool:
        """Whether only whole numbers are meant."""
        return isinstance(self.low, int) and isinstance(self.high, int)


def _kind(value: Any) -> str:
    # By what is given, so that a wrong number in a range isn't told as an unknown key of choices.
    if isinstance(value, dict):
        return "Choices" if "choices" in value else "Range"
    return type(value).__name__


FieldValues = Annotated[
    Annotated[Choices, Tag("Choices")] | Annotated[Range, Tag("Range")], Discriminator(_kind)
]


class Objective(Strict):
    """A measured quantity and which way is better."""

    metric: str = Field(min_length=1)
    direction: Direction


class Limits(Strict):
    """What a run may take; one that takes more is infeasible.

    Attributes:
        memory_mib: its process's largest resident set.
        timeout_s: it is ended after that.
    """

    memory_mib: float | None = Field(default=None, gt=0)
    timeout_s: float = Field(default=3600, gt=0)


class Search(Strict):
    """Real runs.

    Attributes:
        config: the training configuration that is varied.
        fields: dotted names of its fields, and the values to try.
        trials: how many configurations.
        budget: what all runs have in common. samples: batch_size × accumulation × steps, so steps are changed with the
            batch; steps: the number of steps, whatever they cover.
        sampler_seed: of Optuna's sampler.
        base_first: try the configuration's own values first, where the fields allow them.
    """

    config: str
    fields: Annotated[dict[str, FieldValues], Field(min_length=1)]
    trials: Positive
    budget: Literal["samples", "steps"] = "samples"
    sampler_seed: int = Field(default=0, ge=0, lt=2**31)
    base_first: bool = True
    limits: Limits = Limits()

    @field_validator("fields")
    @classmethod
    def _not_the_seed(cls, fields: dict[str, Any]) -> dict[str, Any]:
        for name in ("seed", "out", "version", "name"):
            if name in fields:
                raise ValueError(f"{name} can't be varied; seeds are repeated by `seeds`")
        return fields


class RunTable(Strict):
    """Runs that were made elsewhere.

    Attributes:
        file: a .csv with a header.
        configuration: columns that together name a configuration.
        where: columns that must hold these texts.
        nan: texts that stand for a run whose score isn't a number; an empty cell is a measurement that is missing.
    """

    file: str
    configuration: Annotated[Distinct[str], Field(min_length=1)]
    where: dict[str, str] = Field(default_factory=dict)
    nan: Listed[str] = ("nan", "NaN", "inf", "-inf")


class ParetoSpace(Strict):
    """The whole file; exactly one of `search` and `table`.

    Attributes:
        score: what the model is good for: with `search`, `perplexity/token` or a metric of evaluation.scenario; with
            `table`, a column.
        speed: with `search` always tokens_per_s; with `table`, a column of positive numbers.
        seeds: each configuration is run once with each.
        min_seeds: a configuration with fewer good runs can't be on the front.
        noise: own: each configuration's own scatter; pooled: one for all, of those with at least two runs.
        alpha: of the one-sided tests; intervals have 1 - 2 alpha.
        margin: the loss of score that would be accepted, in the score's unit. With it a setting must be shown to lose
            less; without it, it must not be shown to lose.
    """

    version: Literal[1]
    name: str = Field(default="pareto", pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")
    search: Search | None = None
    table: RunTable | None = None
    score: Objective
    speed: Objective = Objective(metric="tokens_per_s", direction="maximize")
    seeds: Annotated[
        Distinct[Annotated[int, Field(ge=0, lt=2**32)]], Field(min_length=1, max_length=1000)
    ] = (1, 2, 3)
    min_seeds: int = Field(default=2, ge=2)
    noise: Literal["own", "pooled"] = "pooled"
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    margin: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _one(self) -> "ParetoSpace":
        if (self.search is None) == (self.table is None):
            raise ValueError("give exactly one of search and table")
        if self.search is not None:
            if self.speed.metric != "tokens_per_s" or self.speed.direction != "maximize":
                raise ValueError("speed: a search measures tokens_per_s, to be maximized; leave speed out")
            if len(self.seeds) < self.min_seeds:
                raise ValueError(
                    f"seeds: {len(self.seeds)} given, min_seeds asks for {self.min_seeds}; one seed can't tell luck"
                )
        return self


def load_space(path: Path) -> ParetoSpace:
    """Read the file.

    Raises:
        InputError: broken YAML, an unknown key, a wrong type or values that don't fit together; names the line.
    """
    require_regular(path)
    return YamlSource(path).parse(ParetoSpace)
