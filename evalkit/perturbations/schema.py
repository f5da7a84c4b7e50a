"""`text.robustness` of a scenario: which perturbations the texts are measured under."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from evalkit.scenario.additions_schema import Identifier, Strict, names_once

Rate = Annotated[float, Field(gt=0, le=1)]


class _Step(Strict):
    """One perturbation; `name` is what its metrics are called by, the perturbation itself where it is left out."""

    name: Identifier | None = None


class Typos(_Step):
    """Typing errors: keyboard neighbours, swapped, dropped and doubled letters; of Chinese, characters of like sound."""

    perturb: Literal["typos"]
    rate: Rate = 0.05


class Case(_Step):
    """All letters in one case."""

    perturb: Literal["case"]
    to: Literal["lower", "upper"] = "lower"


class FullWidth(_Step):
    """Full-width forms of ASCII letters, digits and punctuation, as Chinese input methods write them."""

    perturb: Literal["fullwidth"]
    rate: Rate = 1.0


class Numbers(_Step):
    """Another number format: 1,000.50 (grouped), 1.000,50 (continental), 1000.50 (plain); None: any that differs."""

    perturb: Literal["numbers"]
    to: Literal["grouped", "continental", "plain"] | None = None


class Dates(_Step):
    """Another date format: 2024-03-12, 12/03/2024, 03/12/2024, or in words; None: any that differs."""

    perturb: Literal["dates"]
    to: Literal["iso", "day_first", "month_first", "words"] | None = None


class Script(_Step):
    """Simplified to traditional Chinese, or back."""

    perturb: Literal["script"]
    to: Literal["traditional", "simplified"] = "traditional"


class DropSentences(_Step):
    """Sentences left out, never all of a text."""

    perturb: Literal["drop_sentences"]
    rate: Rate = 0.2


class Distract(_Step):
    """Harmless sentences beside the point, in the text's language."""

    perturb: Literal["distract"]
    count: int = Field(default=1, ge=1, le=20)


class Mix(_Step):
    """Sentences of another domain, from a file of texts; `rate` is their number over that of the text's own, at least one."""

    perturb: Literal["mix"]
    data: str
    rate: Rate = 0.5


class SwapEntities(_Step):
    """Numbers of a text swapped among each other, amounts among texts, glossary terms for other terms."""

    perturb: Literal["swap_entities"]
    entities: list[Literal["numbers", "amounts", "terms"]] = Field(default=["numbers"], min_length=1)
    glossary: str | None = None

    @model_validator(mode="after")
    def _terms_need_a_glossary(self) -> "SwapEntities":
        if ("terms" in self.entities) != (self.glossary is not None):
            raise ValueError("terms and glossary go together")
        return self


StepSpec = Typos | Case | FullWidth | Numbers | Dates | Script | DropSentences | Distract | Mix | SwapEntities

_KINDS: dict[str, type[_Step]] = {
    "typos": Typos,
    "case": Case,
    "fullwidth": FullWidth,
    "numbers": Numbers,
    "dates": Dates,
    "script": Script,
    "drop_sentences": DropSentences,
    "distract": Distract,
    "mix": Mix,
    "swap_entities": SwapEntities,
}


def _known(value: Any) -> Any:
    """Refuse an unknown perturbation before the union does, in words."""
    if not isinstance(value, Mapping) or "steps" in value or not isinstance(value.get("perturb"), str):
        return value
    given = value["perturb"]
    if given not in _KINDS:
        near = difflib.get_close_matches(given, _KINDS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"one of: {', '.join(_KINDS)}"
        raise ValueError(f"unknown perturbation {given!r}; {hint}")
    return value


def _tag(value: Any) -> str | None:
    # The tags are class names, which error messages leave out of the field path.
    if isinstance(value, Strict):
        return type(value).__name__
    if not isinstance(value, Mapping):
        return None
    if "steps" in value:
        return "Chain"
    kind = value.get("perturb")
    found = _KINDS.get(kind) if isinstance(kind, str) else None
    return None if found is None else found.__name__


def _discriminator() -> Discriminator:
    return Discriminator(
        _tag,
        custom_error_type="perturbation",
        custom_error_message="name a perturbation (perturb: typos), or give name and steps",
    )


_Steps = (
    Annotated[Typos, Tag("Typos")]
    | Annotated[Case, Tag("Case")]
    | Annotated[FullWidth, Tag("FullWidth")]
    | Annotated[Numbers, Tag("Numbers")]
    | Annotated[Dates, Tag("Dates")]
    | Annotated[Script, Tag("Script")]
    | Annotated[DropSentences, Tag("DropSentences")]
    | Annotated[Distract, Tag("Distract")]
    | Annotated[Mix, Tag("Mix")]
    | Annotated[SwapEntities, Tag("SwapEntities")]
)
_ChainStep = Annotated[_Steps, _discriminator(), BeforeValidator(_known)]


class Chain(Strict):
    """Several perturbations, one after the other."""

    name: Identifier
    steps: list[_ChainStep] = Field(min_length=1)

    @model_validator(mode="after")
    def _one_name(self) -> "Chain":
        if any(step.name is not None for step in self.steps):
            raise ValueError("a step has no name of its own; name the whole")
        return self


PerturbationSpec = Annotated[
    _Steps | Annotated[Chain, Tag("Chain")], _discriminator(), BeforeValidator(_known)
]


class Robustness(Strict):
    """Perturbations outside of a scenario file."""

    robustness: list[PerturbationSpec]

    @model_validator(mode="after")
    def _names_unique(self) -> "Robustness":
        return names_once(self, [label(spec) for spec in self.robustness], "robustness")


def label(spec: StepSpec | Chain) -> str:
    """What the metrics of a perturbation are called by: robustness/<label>/..."""
    if isinstance(spec, Chain):
        return spec.name
    return spec.name or spec.perturb


def steps_of(spec: StepSpec | Chain) -> Iterator[tuple[tuple[str | int, ...], StepSpec]]:
    """Each step with its field path inside the spec."""
    if isinstance(spec, Chain):
        for index, step in enumerate(spec.steps):
            yield ("steps", index), step
    else:
        yield (), spec


def files_of(spec: StepSpec | Chain) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Each file that a perturbation names, with the field path inside the spec."""
    for at, step in steps_of(spec):
        for field in ("data", "glossary"):
            name = getattr(step, field, None)
            if name is not None:
                yield (*at, field), name
