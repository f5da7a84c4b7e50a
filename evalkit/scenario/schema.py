"""The scenario file, `version: 1`: what to measure, on what, and what must hold."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from evalkit.perturbations.schema import PerturbationSpec, label
from evalkit.scenario.additions_schema import (
    Business,
    ClassName,
    Identifier,
    Reference,
    Resample,
    Share,
    Version1,
    View,
    names_once,
)
from evalkit.scenario.additions_schema import Strict as _Strict
from evalkit.scenario.model_schema import BaselineRef, ModelRef


class Window(_Strict):
    """Scoring windows: `length` input positions, a new window every `stride` tokens."""

    length: int = Field(gt=1)
    stride: int = Field(gt=0)
    prefix: Literal["first", "every", "none"] = "first"

    @model_validator(mode="after")
    def _stride_fits(self) -> "Window":
        if self.stride > self.length:
            raise ValueError(
                f"stride {self.stride} is above length {self.length}: tokens between windows would never be scored"
            )
        return self


class Frequency(_Strict):
    """Bands by cumulative training mass: up to `head`, up to `middle`, the rest is the long tail."""

    head: Share = 0.80
    middle: Share = 0.95

    @model_validator(mode="after")
    def _ordered(self) -> "Frequency":
        if self.head >= self.middle:
            raise ValueError("head must be below middle")
        return self


class Oov(_Strict):
    """Out of vocabulary: a word absent from the pinned word counts, or an unknown / byte-fallback token."""

    lexicon: Literal["counts"] = "counts"


class Domain(_Strict):
    """Domain terms, one a line in the glossary file."""

    glossary: str


class Classes(_Strict):
    """Token classes; `precedence` makes them a partition. `own` are classes of the user, called own/NAME."""

    counts: Literal["baseline", "candidate"] | str = "candidate"
    frequency: Frequency | None = Frequency()
    oov: Oov | None = Oov()
    domain: Domain | None = None
    own: list[Reference] = Field(default=[])
    precedence: list[ClassName] = Field(default=["oov", "domain", "frequency"])

    @model_validator(mode="after")
    def _precedence_unique(self) -> "Classes":
        if len(set(self.precedence)) != len(self.precedence):
            raise ValueError("precedence names a class twice")
        return names_once(self, self.own, "own")


class Words(_Strict):
    """What a word is."""

    latin: Literal["whitespace"] = "whitespace"
    cjk: Literal["none", "jieba"] = "none"


class Text(_Strict):
    """Teacher-forced scoring of texts."""

    data: str
    window: Window | None = None
    classes: Classes = Classes()
    words: Words = Words()
    views: list[View] = Field(default=[])
    robustness: list[PerturbationSpec] = Field(default=[])
    resample: Resample | None = None

    @model_validator(mode="after")
    def _names_unique(self) -> "Text":
        names_once(self, [label(spec) for spec in self.robustness], "robustness")
        return names_once(self, [view.name for view in self.views], "views")


class OperatingPoint(_Strict):
    """Choose the threshold on the calibration part so that the recall of the high-risk label is at least this."""

    recall: Share = 0.95


class Costs(_Strict):
    """What a wrong decision costs, in a unit of the business; a right one costs nothing."""

    false_approve: float = Field(ge=0)
    false_reject: float = Field(ge=0)

    @model_validator(mode="after")
    def _costs_something(self) -> "Costs":
        if self.false_approve == self.false_reject == 0:
            raise ValueError("both costs are 0; give at least one wrong decision a cost")
        return self


class Risk(_Strict):
    """Labelled decisions, scored by the log-probabilities of the labels; `bins` are those of the calibration."""

    data: str
    calibration: Share = 0.3
    labels: list[str] = Field(min_length=2)
    high_risk: str
    operating_point: OperatingPoint = OperatingPoint()
    bins: int = Field(default=10, ge=2, le=100)
    costs: Costs | None = None

    @model_validator(mode="after")
    def _labels(self) -> "Risk":
        if len(set(self.labels)) != len(self.labels):
            raise ValueError("labels names a label twice")
        if self.high_risk not in self.labels:
            raise ValueError(f"high_risk {self.high_risk!r} isn't one of the labels")
        return self


class Budget(_Strict):
    """Latency budgets in milliseconds."""

    first_token: float | None = Field(default=None, gt=0)
    turn_overhead: float | None = Field(default=None, gt=0)


class DialogueCosts(_Strict):
    """What happens in a dialogue and what it costs, in a unit of the business.

    `turn`: each turn that the model answered; `handover`: a colleague takes over; `needless_handover`: on top, where nobody
    needed one; `missed_handover`: somebody needed one and got none; `late_turn`: each turn that a needed one came late;
    `unresolved`: the dialogue was neither settled nor handed over, and needed nobody.
    """

    turn: float = Field(default=0.0, ge=0)
    handover: float = Field(default=0.0, ge=0)
    needless_handover: float = Field(default=0.0, ge=0)
    missed_handover: float = Field(default=0.0, ge=0)
    late_turn: float = Field(default=0.0, ge=0)
    unresolved: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _costs_something(self) -> "DialogueCosts":
        if not any(self.__dict__.values()):
            raise ValueError("every cost is 0; give at least one")
        return self


class Dialogues(_Strict):
    """Multi-turn replay through the sandbox.

    `concurrency` dialogues are played side by side, which changes times only. With `single_turn_probes` every recall probe
    is asked once more in a session of its own, where facts and question are one turn.
    """

    include: list[str] = Field(min_length=1)
    population: Literal["sample", "fixed"] = "sample"
    trials: int = Field(default=1, ge=1, le=100)
    variation: list[Literal["paraphrase", "typos", "code_switching"]] = Field(default=[])
    max_new_tokens: int = Field(default=64, ge=1)
    temperature: float = Field(default=0.0, ge=0)
    concurrency: int = Field(default=1, ge=1, le=256)
    single_turn_probes: bool = False
    budget_ms: Budget = Budget()
    costs: DialogueCosts | None = None


class Change(_Strict):
    """Allowed change against the baseline; exactly one field."""

    max_relative_increase: float | None = None
    max_relative_decrease: float | None = None
    max_increase: float | None = None
    max_decrease: float | None = None

    @model_validator(mode="after")
    def _one(self) -> "Change":
        if len([value for value in self.__dict__.values() if value is not None]) != 1:
            raise ValueError(
                "give exactly one of max_relative_increase, max_relative_decrease, max_increase, max_decrease"
            )
        return self


class Rule(_Strict):
    """One condition of the release: min or max, change, or within_ms with share."""

    metric: str
    slice: str | None = None
    k: int | None = Field(default=None, ge=1)
    min: float | None = None
    max: float | None = None
    change: Change | None = None
    within_ms: float | None = Field(default=None, gt=0)
    share: Share | None = None
    min_n: int | None = Field(default=None, ge=1)
    min_coverage: float = Field(default=1.0, ge=0, le=1)
    severity: Literal["block", "warn"] = "block"

    @model_validator(mode="after")
    def _one_condition(self) -> "Rule":
        given = [name for name in ("min", "max", "change", "within_ms") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of min, max, change, within_ms (found: {', '.join(given) or 'none'})"
            )
        if (self.within_ms is None) != (self.share is None):
            raise ValueError("within_ms and share go together")
        if (self.metric == "dialogue/pass_hat_k") != (self.k is not None):
            raise ValueError("k goes with dialogue/pass_hat_k, and it needs it")
        return self


class Policy(_Strict):
    """The release policy; its digest names it in the verdict."""

    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    max_error_rate: float = Field(default=0.0, ge=0, lt=1)
    max_truncated_rate: float = Field(default=0.0, ge=0, lt=1)
    max_looks: int = Field(default=2, ge=1)
    rules: list[Rule] = Field(min_length=1)


class PolicyRef(_Strict):
    """A policy in its own file, owned by another team."""

    policy: str


def _gate_kind(value: Any) -> str:
    # Decided by the key, so that a wrong value is reported by the branch that was meant.
    by_file = isinstance(value, PolicyRef) or (isinstance(value, dict) and "policy" in value)
    return "PolicyRef" if by_file else "Policy"


Gate = Annotated[
    Annotated[Policy, Tag("Policy")] | Annotated[PolicyRef, Tag("PolicyRef")], Discriminator(_gate_kind)
]


class Output(_Strict):
    """Which projections to write."""

    formats: list[Literal["html", "markdown", "junit"]] = Field(default=["html", "markdown", "junit"])


class Scenario(_Strict):
    """The whole file."""

    version: Version1
    name: Identifier
    seed: int = Field(default=2024, ge=0, lt=2**63)
    model: ModelRef | None = None
    baseline: BaselineRef | None = None
    first_release: bool = False
    flow: str | None = None
    text: Text | None = None
    risk: Risk | None = None
    dialogues: Dialogues | None = None
    modules: str | None = None
    metrics: list[Reference] = Field(default=[])
    business: list[Business] = Field(default=[])
    gate: Gate | None = None
    output: Output = Output()

    @model_validator(mode="after")
    def _measures_something(self) -> "Scenario":
        if self.text is None and self.risk is None and self.dialogues is None:
            raise ValueError("nothing to measure: give at least one of text, risk, dialogues")
        names_once(self, self.metrics, "metrics")
        return names_once(self, [figure.name for figure in self.business], "business")
