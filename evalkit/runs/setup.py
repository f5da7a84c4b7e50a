"""From a scenario and bundles to what is measured: windows, classes, decisions, dialogues, and their signatures."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from evalkit.backends.choice import DEFAULT, BackendName
from evalkit.bundle import Bundle
from evalkit.canonical import sha256_file
from evalkit.errors import InputError
from evalkit.metrics.context import MetricContext, RiskSetup
from evalkit.metrics.counts import Counts, counts_from_bundle, counts_from_file
from evalkit.metrics.declared import declared_signatures
from evalkit.metrics.glossary import read_glossary
from evalkit.metrics.segmenter import jieba_words
from evalkit.metrics.signature import dialogue_signature, risk_signatures, text_signatures
from evalkit.metrics.token_classes import TokenClassifier, build_classifier
from evalkit.metrics.words import WordRule
from evalkit.runs.folder import Side
from evalkit.scenario.loader import LoadedScenario
from evalkit.scenario.schema import Classes, Window
from evalkit.scenario.setup import dialogue_setup
from evalkit.scoring.decisions import DecisionItem, read_decisions
from evalkit.scoring.texts import TextItem, read_texts
from evalkit.scoring.windows import resolve_window

_DEFAULT_CONFIDENCE = 0.95


@dataclass(frozen=True)
class ModelSetup:
    """One model and how it is measured."""

    side: Side
    bundle: Bundle
    window: Window
    classifier: TokenClassifier
    context: MetricContext


@dataclass(frozen=True)
class RunSetup:
    """Everything that a run measures, read and checked before the first measurement.

    Attributes:
        texts, decisions: empty where the scenario has none.
        models: the candidate first.
        backend: what scores their graphs.
    """

    loaded: LoadedScenario
    texts: tuple[TextItem, ...]
    decisions: tuple[DecisionItem, ...]
    models: tuple[ModelSetup, ...]
    backend: BackendName


def prepare(
    loaded: LoadedScenario,
    candidate: Bundle,
    baseline: Bundle | None,
    backend: BackendName = DEFAULT,
) -> RunSetup:
    """Read a scenario's data and fix how both models are measured.

    Raises:
        InputError: data or settings don't fit.
    """
    scenario = loaded.scenario
    counts = _pinned_counts(loaded, candidate, baseline)
    terms = None if loaded.glossary is None else read_glossary(loaded.glossary)
    sides: list[tuple[Side, Bundle]] = [("candidate", candidate)]
    if baseline is not None:
        sides.append(("baseline", baseline))
    return RunSetup(
        loaded=loaded,
        texts=() if loaded.text_data is None else tuple(read_texts(loaded.text_data)),
        decisions=()
        if loaded.risk_data is None or scenario.risk is None
        else tuple(read_decisions(loaded.risk_data, scenario.risk.labels)),
        models=tuple(_model_setup(side, bundle, loaded, counts, terms) for side, bundle in sides),
        backend=backend,
    )


def data_digests(loaded: LoadedScenario) -> dict[str, Any]:
    """SHA-256 of every file that the scenario measures on, for the plan."""
    named = {
        "text": loaded.text_data,
        "counts": loaded.counts_file,
        "glossary": loaded.glossary,
        "risk": loaded.risk_data,
    }
    digests: dict[str, Any] = {name: sha256_file(path) for name, path in named.items() if path is not None}
    if loaded.dialogue_files:
        digests["dialogues"] = {path.name: sha256_file(path) for path in loaded.dialogue_files}
    if loaded.flow is not None:
        digests["flow"] = loaded.flow.digest
    return digests


def _pinned_counts(loaded: LoadedScenario, candidate: Bundle, baseline: Bundle | None) -> Counts:
    if loaded.counts_file is not None:
        return counts_from_file(loaded.counts_file)
    text = loaded.scenario.text
    if text is None or text.classes.counts == "candidate":
        return counts_from_bundle(candidate)
    if baseline is None:
        message = "the counts of the baseline are asked for, but the run has none; name a baseline or write candidate"
        raise loaded.error(("text", "classes", "counts"), message)
    return counts_from_bundle(baseline)


def _model_setup(
    side: Side, bundle: Bundle, loaded: LoadedScenario, counts: Counts, terms: Sequence[str] | None
) -> ModelSetup:
    scenario = loaded.scenario
    classes = Classes() if scenario.text is None else scenario.text.classes
    tokenizer_sha256 = bundle.manifest.tokenizer.sha256
    classifier = build_classifier(
        classes, bundle.tokenizer, tokenizer_sha256, counts, terms, loaded.additions.classes
    )
    try:
        window = resolve_window(
            None if scenario.text is None else scenario.text.window, bundle.model.max_length
        )
    except InputError as error:
        raise loaded.error(("text", "window"), f"{error} (bundle {bundle.path})") from None
    added = loaded.additions
    words = _word_rule(loaded)
    signatures = text_signatures(window, "fp32", classifier.digest, tokenizer_sha256, words.name)
    if scenario.risk is not None:
        signatures |= risk_signatures(scenario.risk, "fp32")
    dialogues = dialogue_setup(loaded)
    if scenario.dialogues is not None and dialogues is not None:
        flow_digest = None if loaded.flow is None else loaded.flow.digest
        signatures["dialogue"] = dialogue_signature(scenario.dialogues, flow_digest)
    signatures |= declared_signatures(signatures, added.declared, added.views, added.own, added.business)
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
        dialogues=dialogues,
        absent=dict(classifier.absent),
        k_values=tuple(sorted({1, *(figure.k for figure in added.business if figure.k is not None)})),
        slices=tuple(sorted({figure.slice for figure in added.business if figure.slice is not None})),
        views=added.views,
        classes=tuple(setup for setup, _ in added.classes),
        own=added.own,
        business=added.business,
    )
    return ModelSetup(side, bundle, window, replace(classifier, views=added.span_views, words=words), context)


def _word_rule(loaded: LoadedScenario) -> WordRule:
    text = loaded.scenario.text
    if text is None or text.words.cjk == "none":
        return WordRule()
    try:
        return jieba_words()
    except InputError as error:
        raise loaded.error(("text", "words", "cjk"), str(error)) from None
