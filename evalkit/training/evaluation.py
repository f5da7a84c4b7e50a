"""One evaluation of the network in training: the offline scorer on its present weights."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from evalkit.backends.base import Backend
from evalkit.bundle import Bundle, load_bundle
from evalkit.canonical import sha256_file
from evalkit.checks import instance, number, several, shown, whole
from evalkit.errors import InputError
from evalkit.files import refuse_named_pipe
from evalkit.metrics.context import MetricContext, ResampleSetup
from evalkit.metrics.counts import Counts, counts_from_bundle, counts_from_file
from evalkit.metrics.evaluate import evaluate
from evalkit.metrics.glossary import read_glossary
from evalkit.metrics.result import MetricResult
from evalkit.metrics.robustness_specs import robustness_signatures
from evalkit.metrics.signature import text_signatures
from evalkit.metrics.token_classes import TokenClassifier, build_classifier
from evalkit.perturbations.perturbation import PerturbedTexts, build_perturbation, perturbed
from evalkit.perturbations.schema import Robustness, files_of
from evalkit.runs.evidence import Evidence
from evalkit.runs.evidence_io import in_order
from evalkit.runs.perturbed import OnRecords, ScoreItems, score_perturbed
from evalkit.runs.promotion import promoted_bundle
from evalkit.runs.records import SampleRecord
from evalkit.runs.setup import measurement_of, resample_of
from evalkit.scenario.loader import LoadedScenario, load_scenario
from evalkit.scenario.schema import Classes, Window
from evalkit.scoring.scorer import score_texts
from evalkit.scoring.texts import TextItem, read_texts
from evalkit.scoring.windows import resolve_window
from evalkit.tokenization import TextTokenizer


@dataclass(frozen=True)
class Measurement:
    """What an evaluation found.

    Attributes:
        evidence: a record a text.
        metrics: with intervals, as in results.json.
        elapsed_ns: of the whole evaluation.
    """

    evidence: Evidence
    metrics: tuple[MetricResult, ...]
    elapsed_ns: int

    def find(self, name: str) -> MetricResult | None:
        """The metric of this name over all texts, or None."""
        return next((item for item in self.metrics if item.name == name and item.slice is None), None)


@dataclass(frozen=True)
class Validation:
    """The texts and how they are measured; equal for offline and in-training evaluation, signatures included.

    `perturbed` holds the texts under each perturbation (see `with_robustness`); `tokenizer_sha256` is of the tokenizer's file.
    """

    items: tuple[TextItem, ...]
    tokenizer: TextTokenizer
    window: Window
    classifier: TokenClassifier
    context: MetricContext
    tokenizer_sha256: str
    perturbed: tuple[PerturbedTexts, ...] = ()

    def measure(self, backend: Backend, items: Sequence[TextItem] | None = None) -> Measurement:
        """Score the texts (or those of `items`) with a backend.

        Raises:
            InputError: the backend can't score them.
        """

        def score(texts: Sequence[TextItem], _: Collection[str], take: OnRecords) -> None:
            score_texts(texts, self.tokenizer, backend, self.window, self.classifier, on_records=take)

        return self.measured_by(score, items)

    def reweighted(self, resample: ResampleSetup) -> "Validation":
        """The same with the texts re-weighted too, as slice `resampled`."""
        return replace(self, context=replace(self.context, resample=resample))

    def measured_by(self, score: ScoreItems, items: Sequence[TextItem] | None = None) -> Measurement:
        """The same with another way to score texts."""
        began = time.perf_counter_ns()
        records: list[SampleRecord] = []
        chosen = self.items if items is None else items
        score(chosen, (), records.extend)
        clean = {record.sample_id: record for record in records}
        for texts in self.perturbed:
            score_perturbed(texts.of(clean), clean, score, records.extend)
        evidence = in_order(records, ())
        metrics = tuple(evaluate(evidence, self.context))
        return Measurement(evidence, metrics, time.perf_counter_ns() - began)

    def in_precision(self, precision: str) -> "Validation":
        """The same for a model that computes in another precision: its numbers have other signatures."""
        signatures = {
            name: signature.replace("|p:fp32", f"|p:{precision}")
            for name, signature in self.context.signatures.items()
        }
        return replace(self, context=replace(self.context, signatures=signatures))


def with_robustness(
    check: Validation, specs: Sequence[Mapping[str, Any]], folder: str | Path = "."
) -> Validation:
    """The validation with perturbations, under which its texts are measured too.

    Args:
        check: the validation; its seed is that of the perturbations.
        specs: as under `text.robustness` of a scenario, e.g. `{"perturb": "typos", "rate": 0.05}`.
        folder: that paths in them are relative to.

    Raises:
        InputError: a spec isn't valid (it is named by its place), or a file is missing or broken.
    """
    try:
        parsed = Robustness.model_validate(
            {"robustness": list(several("robustness", specs, "mappings"))}
        ).robustness
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        # Names of classes in the path are pydantic's own.
        place = ".".join(str(part) for part in problem["loc"] if not str(part)[:1].isupper())
        reason = problem["msg"].removeprefix("Value error, ")
        raise InputError(f"{place}: {reason}" if place else reason) from None
    built = [
        build_perturbation(spec, {field: Path(folder) / name for field, name in files_of(spec)})
        for spec in parsed
    ]
    setups = tuple(one.setup for one in built)
    base = check.context
    context = replace(
        base,
        robustness=setups,
        signatures={**base.signatures, **robustness_signatures(base.signatures, setups)},
    )
    texts = tuple(perturbed(one, check.items, base.seed) for one in built)
    return replace(check, context=context, perturbed=texts)


def validation(
    texts: str | Path | Sequence[TextItem],
    tokenizer: str | Path,
    *,
    max_length: int,
    prefix_token: int | None = None,
    window: Window | None = None,
    classes: Classes | None = None,
    counts: str | Path | Counts | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Validation:
    """Put a validation together.

    Args:
        texts: a JSON Lines file (`{"id", "text", "cluster"?, "tags"?}`), or the texts.
        tokenizer: a `tokenizer.json`.
        max_length: longest text that the network reads, in tokens.
        prefix_token: the token that the tokenizer puts before each text, None where it puts none.
        window: None: max_length/max_length/first.
        classes: token classes; a glossary's path is relative to the working directory.
        counts: training frequencies for the classes, a `.npz` file; None: the classes that need them are null.
        confidence, seed: of the intervals.

    Raises:
        InputError: a file is missing or broken, or the settings don't fit.
    """
    path = Path(instance("tokenizer", tokenizer, str | Path, "the path of a tokenizer.json"))
    max_length = whole("max_length", max_length, least=2)
    confidence = number("confidence", confidence, above=0.5, below=1, what="a number above 0.5 and below 1")
    seed = whole("seed", seed, least=0)
    classes = instance("classes", classes or Classes(), Classes, "evalkit.scenario.schema.Classes")
    if classes.own or classes.counts != "candidate":
        field, how = ("own", "need a scenario") if classes.own else ("counts", "are given as counts=FILE")
        raise InputError(f"classes.{field}: in a validation without a scenario these {how}")
    if window is not None:
        instance("window", window, Window, "evalkit.scenario.schema.Window")
    if counts is not None:
        counts = instance("counts", counts, str | Path | Counts, "the path of a .npz file, or Counts,")
    items = _items(texts)
    refuse_named_pipe(path)
    text_tokenizer = TextTokenizer.from_file(path, prefix_token=None, end_token=None, chat_template=None)
    if prefix_token is not None:
        text_tokenizer.prefix_token = whole("prefix_token", prefix_token, least=0)
        if prefix_token >= text_tokenizer.vocab_size:
            ids = text_tokenizer.vocab_size
            raise InputError(f"prefix_token: a token id below {ids} is needed (got {prefix_token})")
    tokenizer_sha256 = sha256_file(path)
    terms = None if classes.domain is None else read_glossary(Path(classes.domain.glossary))
    if isinstance(counts, str | Path):
        counts = counts_from_file(Path(counts))
    classifier = build_classifier(classes, text_tokenizer, tokenizer_sha256, counts, terms)
    window = resolve_window(window, max_length)
    context = MetricContext(
        confidence=confidence,
        seed=seed,
        signatures=text_signatures(
            window, "fp32", classifier.digest, tokenizer_sha256, classifier.words.name
        ),
        absent=dict(classifier.absent),
    )
    return Validation(items, text_tokenizer, window, classifier, context, tokenizer_sha256)


def _items(texts: str | Path | Sequence[TextItem]) -> tuple[TextItem, ...]:
    """The texts, each once."""
    if isinstance(texts, str | Path):
        return tuple(read_texts(Path(texts)))
    what = "TextItem(sample_id, text, cluster)"
    items, ids = several("texts", texts, what), set[str]()
    for place, item in enumerate(items):
        instance(f"texts: {place}", item, TextItem, what)
        if not all(isinstance(part, str) for part in (item.sample_id, item.text, item.cluster)):
            raise InputError(f"texts: {place}: id, text and cluster are texts (got {shown(item)})")
        if not isinstance(item.tags, tuple) or not all(isinstance(tag, str) and tag for tag in item.tags):
            raise InputError(
                f"texts: {place}: tags: a tuple of non-empty texts is needed (got {shown(item.tags)})"
            )
        if item.sample_id in ids:
            raise InputError(f"texts: {place}: the id {item.sample_id!r} is repeated; give each text its own")
        ids.add(item.sample_id)
    if not items:
        raise InputError("texts: there are none; an evaluation needs at least one")
    return items


@dataclass(frozen=True)
class ModelInTraining:
    """What a scenario needs to know of the model that is being trained.

    Attributes:
        name: for messages.
        tokenizer, tokenizer_sha256: with the digest of its file.
        max_length: longest text that the model reads.
        counts: what the training data holds.
        precision: of its arithmetic.
    """

    name: str
    tokenizer: TextTokenizer
    tokenizer_sha256: str
    max_length: int
    counts: Counts
    precision: str = "fp32"


def validation_of_scenario(path: Path, model: ModelInTraining) -> Validation:
    """The texts of a scenario, measured as `evalkit run` measures them: same classes, same signatures.

    Decisions and dialogues need an exported model and are left out.

    Args:
        path: the scenario.
        model: in training. Its own counts are used where the scenario pins the candidate's.

    Raises:
        InputError: the scenario is broken, has no texts, or pins counts that aren't there.
    """
    loaded = load_scenario(path)
    if loaded.text_data is None or loaded.scenario.text is None:
        raise loaded.error(("text",), "an evaluation during training needs texts; add text.data")
    counts = model.counts
    if loaded.counts_file is not None:
        counts = counts_from_file(loaded.counts_file)
    elif loaded.scenario.text.classes.counts == "baseline":
        if loaded.baseline_alias is None and loaded.baseline is None:
            raise loaded.error(
                ("text", "classes", "counts"),
                "the counts of the baseline are asked for, but the scenario names no baseline bundle; write candidate",
            )
        counts = counts_from_bundle(_baseline_bundle(loaded))
    terms = None if loaded.glossary is None else read_glossary(loaded.glossary)
    items = tuple(read_texts(loaded.text_data))
    resample = resample_of(loaded, items, model, terms)
    window, classifier, context = measurement_of(model, loaded, counts, terms, resample)
    assert window is not None  # the model's max_length is known
    texts_alone = replace(context, risk=None, dialogues=None, business=())
    changed = tuple(perturbed(one, items, loaded.scenario.seed) for one in loaded.additions.robustness)
    return Validation(
        items, model.tokenizer, window, classifier, texts_alone, model.tokenizer_sha256, changed
    )


def _baseline_bundle(loaded: LoadedScenario) -> Bundle:
    """The scenario's baseline: the bundle that it names, or that its alias holds now."""
    if loaded.baseline_alias is not None:
        return promoted_bundle(loaded.baseline_alias)
    assert loaded.baseline is not None
    return load_bundle(loaded.baseline)
