"""From a scenario and bundles to what is measured: windows, classes, decisions, dialogues, and their signatures."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from evalkit.backends.choice import DEFAULT, BackendName
from evalkit.backends.models import MeasuredModel
from evalkit.backends.own import OwnModel
from evalkit.bundle import Bundle
from evalkit.canonical import sha256_file
from evalkit.errors import InputError
from evalkit.metrics.context import MetricContext, ResampleSetup, RiskSetup
from evalkit.metrics.counts import Counts, counts_from_bundle, counts_from_file, no_counts
from evalkit.metrics.glossary import read_glossary
from evalkit.metrics.segmenter import jieba_words
from evalkit.metrics.token_classes import TokenClassifier, build_classifier
from evalkit.metrics.words import WordRule
from evalkit.perturbations.perturbation import PerturbedTexts, perturbed
from evalkit.resampling.setup import resample_setup
from evalkit.runs.folder import Side
from evalkit.scenario.loader import LoadedScenario
from evalkit.scenario.schema import Classes, Window
from evalkit.scenario.setup import dialogue_setup
from evalkit.scenario.signatures import scenario_signatures
from evalkit.scoring.decisions import DecisionItem, read_decisions
from evalkit.scoring.texts import TextItem, read_texts
from evalkit.scoring.windows import resolve_window
from evalkit.tokenization import TextTokenizer

_DEFAULT_CONFIDENCE = 0.95


@dataclass(frozen=True)
class ModelSetup:
    """One model and how it is measured.

    Attributes:
        window: how texts are cut; None: they are sent whole, to a served model whose tokenizer isn't known.
    """

    side: Side
    model: MeasuredModel
    window: Window | None
    classifier: TokenClassifier
    context: MetricContext


@dataclass(frozen=True)
class RunSetup:
    """Everything that a run measures, read and checked before the first measurement.

    Attributes:
        texts, decisions: empty where the scenario has none.
        perturbed: the texts again, under each perturbation.
        models: the candidate first.
        backend: what scores their graphs.
    """

    loaded: LoadedScenario
    texts: tuple[TextItem, ...]
    decisions: tuple[DecisionItem, ...]
    models: tuple[ModelSetup, ...]
    backend: BackendName
    perturbed: tuple[PerturbedTexts, ...] = ()


def prepare(
    loaded: LoadedScenario,
    candidate: MeasuredModel,
    baseline: MeasuredModel | None,
    backend: BackendName = DEFAULT,
) -> RunSetup:
    """Read a scenario's data and fix how both models are measured.

    Raises:
        InputError: data or settings don't fit.
    """
    scenario = loaded.scenario
    _refuse_silent_models(loaded, candidate, baseline)
    counts = _pinned_counts(loaded, candidate, baseline)
    terms = None if loaded.glossary is None else read_glossary(loaded.glossary)
    sides: list[tuple[Side, MeasuredModel]] = [("candidate", candidate)]
    if baseline is not None:
        sides.append(("baseline", baseline))
    texts = () if loaded.text_data is None else tuple(read_texts(loaded.text_data))
    resample = resample_of(loaded, texts, candidate, terms)
    return RunSetup(
        loaded=loaded,
        texts=texts,
        decisions=()
        if loaded.risk_data is None or scenario.risk is None
        else tuple(read_decisions(loaded.risk_data, scenario.risk.labels)),
        models=tuple(
            ModelSetup(side, model, *measurement_of(model, loaded, counts, terms, resample))
            for side, model in sides
        ),
        backend=backend,
        perturbed=tuple(perturbed(one, texts, scenario.seed) for one in loaded.additions.robustness),
    )


def data_digests(loaded: LoadedScenario) -> dict[str, Any]:
    """SHA-256 of every file that the scenario measures on, for the plan."""
    named = {
        "text": loaded.text_data,
        "counts": loaded.counts_file,
        "glossary": loaded.glossary,
        "risk": loaded.risk_data,
        "resample": None if loaded.resample is None else loaded.resample.target,
    }
    digests: dict[str, Any] = {name: sha256_file(path) for name, path in named.items() if path is not None}
    if loaded.dialogue_files:
        digests["dialogues"] = {path.name: sha256_file(path) for path in loaded.dialogue_files}
    if loaded.flow is not None:
        digests["flow"] = loaded.flow.digest
    return digests


def _refuse_silent_models(
    loaded: LoadedScenario, candidate: MeasuredModel, baseline: MeasuredModel | None
) -> None:
    """Refuse models that hold no conversation, where there are dialogues."""
    for model in (candidate, baseline) if loaded.scenario.dialogues is not None else ():
        if isinstance(model, OwnModel):
            raise loaded.error(
                ("dialogues",),
                f"{model.name} is code of the user's, which scores tokens and holds no conversation; leave dialogues out, "
                "or measure a bundle or an endpoint",
            )
        if isinstance(model, Bundle) and model.manifest.tokenizer.chat_template is None:
            raise loaded.error(
                ("dialogues",),
                f"the bundle of {model.name} has no chat template (tokenizer.chat_template is null), so it holds no "
                "conversation; leave dialogues out, or export or convert it again from a tokenizer that has one",
            )


def _pinned_counts(
    loaded: LoadedScenario, candidate: MeasuredModel, baseline: MeasuredModel | None
) -> Counts:
    if loaded.counts_file is not None:
        return counts_from_file(loaded.counts_file)
    text = loaded.scenario.text
    if text is None or text.classes.counts == "candidate":
        return _counts_of(candidate)
    if baseline is None:
        message = "the counts of the baseline are asked for, but the run has none; name a baseline or write candidate"
        raise loaded.error(("text", "classes", "counts"), message)
    return _counts_of(baseline)


def _counts_of(model: MeasuredModel) -> Counts:
    return counts_from_bundle(model) if isinstance(model, Bundle) else no_counts(model.name)


@dataclass(frozen=True)
class _NoVocabulary:
    """Stands for the tokenizer where token ids aren't known: no id is special."""

    vocab_size: int = 1
    unknown_ids: frozenset[int] = frozenset()


class ScoredModel(Protocol):
    """What fixes how a model's texts are measured."""

    @property
    def name(self) -> str: ...

    @property
    def tokenizer(self) -> TextTokenizer | None: ...

    @property
    def tokenizer_sha256(self) -> str: ...

    @property
    def precision(self) -> str: ...

    @property
    def max_length(self) -> int | None: ...


def _window(model: ScoredModel, loaded: LoadedScenario) -> Window | None:
    asked = None if loaded.scenario.text is None else loaded.scenario.text.window
    if model.max_length is not None:
        try:
            return resolve_window(asked, model.max_length)
        except InputError as error:
            raise loaded.error(("text", "window"), f"{error} (model {model.name})") from None
    if asked is not None:
        raise loaded.error(
            ("text", "window"),
            f"the endpoint of {model.name} is sent whole texts; for windows add tokenizer and max_length to the model",
        )
    return None


def resample_of(
    loaded: LoadedScenario,
    texts: Sequence[TextItem],
    candidate: ScoredModel,
    terms: Sequence[str] | None,
) -> ResampleSetup | None:
    """Weights of the texts. Both models share them, made by the candidate's tokenizer, so that a change is one of the models.

    Raises:
        InputError: the target is broken, or there is nothing to re-weight.
    """
    text, resample = loaded.scenario.text, loaded.resample
    if text is None or text.resample is None or resample is None:
        return None
    spec = text.resample
    target = read_texts(resample.target)
    try:
        features = resample.features(candidate.tokenizer, candidate.tokenizer_sha256, terms)
        return resample_setup(features, texts, target, spec, loaded.scenario.seed)
    except InputError as error:
        raise loaded.error(("text", "resample"), str(error)) from None


def measurement_of(
    model: ScoredModel,
    loaded: LoadedScenario,
    counts: Counts,
    terms: Sequence[str] | None,
    resample: ResampleSetup | None = None,
) -> tuple[Window | None, TokenClassifier, MetricContext]:
    """Window, token classes and metric settings of a model under a scenario.

    Args:
        model: that is measured.
        loaded: the scenario.
        counts: the pinned frequencies.
        terms: of the glossary, or None.
        resample: how the texts are re-weighted, or None.

    Raises:
        InputError: the scenario's window doesn't fit the model, or a package is missing.
    """
    scenario = loaded.scenario
    classes = Classes() if scenario.text is None else scenario.text.classes
    classifier = build_classifier(
        classes,
        model.tokenizer or _NoVocabulary(),
        model.tokenizer_sha256,
        # Without token ids there is nothing to count by; classes of words and terms need none.
        counts if model.tokenizer is not None else replace(counts, tokens=None),
        terms,
        loaded.additions.classes,
    )
    window = _window(model, loaded)
    added = loaded.additions
    words = word_rule(loaded)
    signatures = scenario_signatures(
        loaded,
        window=window,
        precision=model.precision,
        classes_digest=classifier.digest,
        tokenizer_sha256=model.tokenizer_sha256,
        words=words.name,
    )
    risk = scenario.risk
    context = MetricContext(
        confidence=_DEFAULT_CONFIDENCE if loaded.policy is None else loaded.policy.confidence,
        seed=scenario.seed,
        signatures=signatures,
        risk=None
        if risk is None
        else RiskSetup(
            tuple(risk.labels),
            risk.high_risk,
            risk.operating_point.recall,
            bins=risk.bins,
            costs=None if risk.costs is None else risk.costs.model_dump(),
        ),
        dialogues=dialogue_setup(loaded),
        absent=dict(classifier.absent),
        k_values=tuple(sorted({1, *(figure.k for figure in added.business if figure.k is not None)})),
        slices=tuple(sorted({figure.slice for figure in added.business if figure.slice is not None})),
        views=added.views,
        classes=tuple(setup for setup, _ in added.classes),
        own=added.own,
        business=added.business,
        robustness=tuple(one.setup for one in added.robustness),
        resample=resample,
    )
    return window, replace(classifier, views=added.span_views, words=words), context


def word_rule(loaded: LoadedScenario) -> WordRule:
    """How a scenario counts words.

    Raises:
        InputError: its package is missing.
    """
    text = loaded.scenario.text
    if text is None or text.words.cjk == "none":
        return WordRule()
    try:
        return jieba_words()
    except InputError as error:
        raise loaded.error(("text", "words", "cjk"), str(error)) from None
