"""One evaluation of the network in training: the offline scorer on its present weights."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evalkit.backends.base import Backend
from evalkit.canonical import sha256_file
from evalkit.errors import InputError
from evalkit.metrics.context import MetricContext, ResampleSetup
from evalkit.metrics.counts import Counts, counts_from_file
from evalkit.metrics.evaluate import evaluate
from evalkit.metrics.glossary import read_glossary
from evalkit.metrics.result import MetricResult
from evalkit.metrics.signature import text_signatures
from evalkit.metrics.token_classes import TokenClassifier, build_classifier
from evalkit.runs.evidence import Evidence
from evalkit.runs.evidence_io import in_order
from evalkit.runs.records import SampleRecord
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
    """The texts and how they are measured; equal for offline and in-training evaluation, signatures included."""

    items: tuple[TextItem, ...]
    tokenizer: TextTokenizer
    window: Window
    classifier: TokenClassifier
    context: MetricContext

    def measure(
        self,
        backend: Backend,
        items: Sequence[TextItem] | None = None,
        *,
        resample: ResampleSetup | None = None,
    ) -> Measurement:
        """Score the texts (or those of `items`) with a backend.

        Args:
            backend: what scores them.
            items: None: those of the validation.
            resample: weights, for the slice `resampled` beside the plain metrics.

        Raises:
            InputError: the backend can't score them.
        """
        began = time.perf_counter_ns()
        records: list[SampleRecord] = []
        score_texts(
            self.items if items is None else items,
            self.tokenizer,
            backend,
            self.window,
            self.classifier,
            on_records=records.extend,
        )
        evidence = in_order(records, ())
        context = self.context if resample is None else replace(self.context, resample=resample)
        metrics = tuple(evaluate(evidence, context))
        return Measurement(evidence, metrics, time.perf_counter_ns() - began)


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
    path = Path(tokenizer)
    text_tokenizer = TextTokenizer.from_file(
        path, prefix_token=prefix_token, end_token=None, chat_template=None
    )
    tokenizer_sha256 = sha256_file(path)
    classes = classes or Classes()
    terms = None if classes.domain is None else read_glossary(Path(classes.domain.glossary))
    if isinstance(counts, str | Path):
        counts = counts_from_file(Path(counts))
    classifier = build_classifier(classes, text_tokenizer, tokenizer_sha256, counts, terms)
    window = resolve_window(window, max_length)
    items = tuple(read_texts(Path(texts)) if isinstance(texts, str | Path) else texts)
    if not items:
        raise InputError("texts: there are none; an evaluation needs at least one")
    context = MetricContext(
        confidence=confidence,
        seed=seed,
        signatures=text_signatures(
            window, "fp32", classifier.digest, tokenizer_sha256, classifier.words.name
        ),
        absent=dict(classifier.absent),
    )
    return Validation(items, text_tokenizer, window, classifier, context)
