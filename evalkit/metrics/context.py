"""What metrics need to know beside the evidence."""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class RiskSetup:
    """How decisions are judged.

    Attributes:
        labels: in scenario order; high_risk: one of them.
        recall: of the high-risk label, that the threshold must reach on the calibration part.
        bins: of the reliability curve, with equally many decisions each.
        costs: of a wrong decision, by kind (false_approve, false_reject); None where none are declared.
    """

    labels: tuple[str, ...]
    high_risk: str
    recall: float
    bins: int = 10
    costs: dict[str, float] | None = None


@dataclass(frozen=True)
class DialogueSetup:
    """What was planned, so that missing trials show as lost coverage.

    Attributes:
        dialogue_ids: every planned dialogue.
        trials: planned trials of each; where nothing varies between trials they are copies and count as one.
        varies: whether trials have a source of variation (paraphrase, typos, sampling temperature above 0).
        population: sample (intervals over dialogues) or fixed (rates are facts of that list).
        turns: number of turns of each dialogue.
        first_token_ms, turn_overhead_ms: latency budgets, or None.
        unvaried: dialogues whose trials are copies although others vary (nothing in them can be paraphrased).
        repeated: dialogues whose trials repeat each other though they vary (fewer paraphrases than trials): how many of
            them are different; trial t is a copy of trial t modulo this number.
        tags: of each dialogue, for slices.
        satisfaction_error: mean absolute error of the flow's satisfaction predictor on held-out data, from
            its model card; None where there is no card.
        satisfaction_data: what the predictor learnt from, generated or rated, from its model card.
        costs: see `evalkit.scenario.schema.DialogueCosts`; None where none are declared.
        greedy: whether greedy decoding is promised (temperature 0), so that equal conversations get equal replies.
        single_turn_probes: whether recall probes are asked in a single turn, too.
        model_users: dialogues whose user a model plays that nobody vouches for: by default they block no release.
    """

    dialogue_ids: tuple[str, ...]
    trials: int
    varies: bool
    population: Literal["sample", "fixed"]
    turns: dict[str, int]
    first_token_ms: float | None = None
    turn_overhead_ms: float | None = None
    unvaried: tuple[str, ...] = ()
    repeated: dict[str, int] = field(default_factory=dict)
    tags: dict[str, list[str]] = field(default_factory=dict)
    satisfaction_error: float | None = None
    satisfaction_data: str | None = None
    costs: dict[str, float] | None = None
    greedy: bool = False
    single_turn_probes: bool = False
    model_users: tuple[str, ...] = ()


@dataclass(frozen=True)
class ViewSetup:
    """A view of the tokens: perplexity/view/<name>.

    Attributes:
        digest: of what selects the tokens.
        tag: for a view of whole texts, their tag; else the records hold its sums.
    """

    name: str
    digest: str
    tag: str | None = None


@dataclass(frozen=True)
class ClassSetup:
    """A token class of the user: perplexity/<name> and the other metrics of a class.

    Attributes:
        name: as in the precedence.
        reference: where its code is; sha256: of that code, which isn't needed after scoring.
        action, alarm: see `OwnClass`.
    """

    name: str
    reference: str
    sha256: str
    action: str
    alarm: float


@dataclass(frozen=True)
class OwnSetup:
    """A metric of the user: where its code is, and the SHA-256 of that."""

    reference: str
    sha256: str


@dataclass(frozen=True)
class History:
    """Past releases: the offline score of each, and the figure that was seen online.

    Attributes:
        rows: (offline, online) in the file's order.
        data: name of the file; sha256: of its content.
    """

    rows: tuple[tuple[float, float], ...]
    data: str
    sha256: str


@dataclass(frozen=True)
class BusinessSetup:
    """A business figure: which metric it comes from, and how.

    Attributes:
        name: of the figure; it is reported as business/<name>.
        source, k, slice: the metric.
        version: of the mapping, by its owner.
        unit, direction: None: those of the source.
        fit: linear or isotonic, with a history; None: the figure is the metric itself, or own code makes it.
        history: of a calibrated figure.
        own: code of a mapping that is the user's own.
    """

    name: str
    source: str
    version: int
    k: int | None = None
    slice: str | None = None
    unit: str | None = None
    direction: Literal["lower", "higher"] | None = None
    fit: Literal["linear", "isotonic"] | None = None
    history: History | None = None
    own: OwnSetup | None = None


@dataclass(frozen=True)
class RobustnessSetup:
    """A perturbation under which the texts are measured again: robustness/<name>/<metric>.

    Attributes:
        effect: respelt (the same content), added, removed or altered content; the first two keep the meaning.
        digest: of what it does.
        description: of its settings, for people.
    """

    name: str
    effect: Literal["respelt", "added", "removed", "altered"]
    digest: str
    description: str

    @property
    def keeps_meaning(self) -> bool:
        """Whether everything that the text said is still said."""
        return self.effect in ("respelt", "added")


@dataclass(frozen=True)
class ResampleSetup:
    """The texts re-weighted to other traffic: the slice `resampled`.

    Attributes:
        weights: of each text that can be scored, by sample id.
        digest: of target, features and settings; part of the signature of every re-weighted number.
        problem: why no number follows from the weights, else None.
        details: effective sample size, uncovered mass, distances; see `evalkit.resampling.reweighting.Reweighting`.
    """

    weights: dict[str, float]
    digest: str
    problem: str | None = None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MetricContext:
    """Settings of one evaluation of the evidence.

    Attributes:
        confidence: of intervals (two-sided) and of each one-sided bound.
        seed: of every bootstrap.
        signatures: protocol signature by family: text, risk, dialogue.
        absent: why a metric can't have a value, by metric name (e.g. perplexity/oov: no word counts).
        k_values: the k of dialogue/pass_hat_k to report.
        within: share-within-budget questions of the policy: (metric name, milliseconds).
        slices: tags that rules ask for.
        views, classes, own, business: what the scenario adds to the metrics.
        robustness: perturbations under which the texts are measured again.
        resample: how the texts are re-weighted, or None.
    """

    confidence: float
    seed: int
    signatures: dict[str, str]
    risk: RiskSetup | None = None
    dialogues: DialogueSetup | None = None
    absent: dict[str, str] = field(default_factory=dict)
    k_values: tuple[int, ...] = (1,)
    within: tuple[tuple[str, float], ...] = ()
    slices: tuple[str, ...] = ()
    views: tuple[ViewSetup, ...] = ()
    classes: tuple[ClassSetup, ...] = ()
    own: tuple[OwnSetup, ...] = ()
    business: tuple[BusinessSetup, ...] = ()
    robustness: tuple[RobustnessSetup, ...] = ()
    resample: ResampleSetup | None = None
