"""`sandbox fit`: train a flow's artefacts and measure them, with the measurement written beside them."""

import platform
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evalkit.canonical import sha256_bytes, sha256_file
from evalkit.files import refuse_streams, write_bytes_atomic, write_json_atomic
from evalkit.scenario.flow import card_path
from sandbox.business.examples import Example, distinct, read_intent_examples, read_satisfaction_examples
from sandbox.business.features import normalise
from sandbox.business.linear_model import OUT_OF_SCOPE, softmax
from sandbox.business.recipes import (
    FOLDS,
    INTENT,
    SATISFACTION,
    SEED,
    Calibration,
    Candidate,
    Float64,
    Indices,
    Scored,
    choose,
    fit_temperature,
    none_level,
)
from sandbox.business.satisfaction import DISSATISFIED_UP_TO

CARD_SCHEMA = "evalkit.model_card/1"


@dataclass(frozen=True)
class ModelCard:
    """Where an artefact comes from and how good it is, by cross-validation on examples not trained on."""

    path: Path
    content: dict[str, Any]

    def summary(self) -> str:
        """One line for the terminal."""
        measured = {key: value for key, value in self.content["measured"].items() if isinstance(value, float)}
        figures = ", ".join(f"{name} {value:.3f}" for name, value in measured.items())
        return f"{self.content['kind']}: {self.content['examples']} examples, {figures}; {self.path}"


def fit_intent(data: Path, out: Path, *, rated: bool) -> ModelCard:
    """Train `out`/intent.skops and write its card.

    Args:
        data: CSV file, see read_intent_examples.
        out: folder, made where it doesn't exist.
        rated: the labels were given by people, not by a generator.

    Raises:
        InputError: a problem of the data.
    """
    refuse_streams(data)  # the card's digest is taken in a reading of its own
    examples = distinct(read_intent_examples(data), normalise)
    return _fit("intent", INTENT, _macro_f1, examples, data, out, rated, _intent_quality)


def fit_satisfaction(data: Path, out: Path, *, rated: bool) -> ModelCard:
    """Train `out`/satisfaction.skops and write its card; arguments and errors as in `fit_intent`."""
    refuse_streams(data)
    examples = distinct(read_satisfaction_examples(data), lambda turn: turn)
    return _fit("satisfaction", SATISFACTION, _likelihood, examples, data, out, rated, _rating_quality)


def _fit(
    kind: str,
    candidates: Sequence[Candidate],
    quality: Callable[[list[str], Float64, Indices], tuple[float, float]],
    examples: Sequence[Example[Any]],
    data: Path,
    out: Path,
    rated: bool,
    measure: Callable[[list[str], Float64, Indices], dict[str, Any]],
) -> ModelCard:
    import sklearn.linear_model  # noqa: F401  # loads the libraries whose threads are limited below
    from threadpoolctl import threadpool_limits

    # The matrices are small and sparse: more threads only wait for one another, for ten times the CPU time.
    with threadpool_limits(1):
        best, tried = choose(candidates, examples, quality)
        calibration = Calibration(fit_temperature(best.scores, best.truth), none_level(best))
        scores = (best.scores - calibration.none_level) / calibration.temperature
        probabilities = softmax(scores, none_of_these=best.candidate.by_label)
        measured = measure(best.labels, probabilities, best.truth)
        return _write(kind, best, tried, examples, data, out, rated, calibration, measured)


def _macro_f1(labels: list[str], scores: Float64, truth: Indices) -> tuple[float, float]:
    """Every intent counts alike, however often it occurs; the standard error is that of the accuracy."""
    from sklearn.metrics import f1_score

    accuracy = float((scores.argmax(1) == truth).mean())
    value = float(f1_score(truth, scores.argmax(1), average="macro", zero_division=0.0))
    return value, float(np.sqrt(accuracy * (1 - accuracy) / len(truth)))


def _likelihood(labels: list[str], scores: Float64, truth: Indices) -> tuple[float, float]:
    """Mean log-probability of the true rating: the whole distribution is used, for the expected rating."""
    found = np.log(np.maximum(softmax(scores, none_of_these=False)[np.arange(len(truth)), truth], 1e-300))
    return float(found.mean()), float(found.std() / np.sqrt(len(found)))


def _intent_quality(labels: list[str], probabilities: Float64, truth: Indices) -> dict[str, Any]:
    from sklearn.metrics import roc_auc_score

    inside = np.asarray([label != OUT_OF_SCOPE for label in labels])
    confidence, in_scope = probabilities[:, inside].max(1), inside[truth]
    return {
        **_classification(labels, probabilities, truth),
        # How well the confidence tells texts of the bot's intents from others; needs examples of those.
        "out_of_scope_auroc": None if in_scope.all() else float(roc_auc_score(in_scope, confidence)),
        # Where `out_of_scope_below` of flow.yaml would turn one in twenty texts of the bot's intents away.
        "confidence_of_95_percent": float(np.quantile(confidence[in_scope], 0.05)),
    }


def _classification(labels: list[str], probabilities: Float64, truth: Indices) -> dict[str, Any]:
    from sklearn.metrics import accuracy_score, f1_score, recall_score

    predicted = probabilities.argmax(1)
    recalls = recall_score(truth, predicted, average=None, labels=range(len(labels)), zero_division=0.0)
    return {
        "accuracy": float(accuracy_score(truth, predicted)),
        "macro_f1": float(f1_score(truth, predicted, average="macro", zero_division=0.0)),
        "expected_calibration_error": _calibration_error(probabilities, truth),
        "recall_by_label": {label: float(recall) for label, recall in zip(labels, recalls, strict=True)},
    }


def _calibration_error(probabilities: Float64, truth: Indices) -> float:
    """|accuracy - confidence| over ten bins of confidence, weighted by their size (Guo et al. 2017)."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == truth
    bins = np.minimum((confidence * 10).astype(int), 9)
    gaps = [abs(right[bins == b].sum() - confidence[bins == b].sum()) for b in range(10)]
    return float(sum(gaps) / len(truth))


def _rating_quality(labels: list[str], probabilities: Float64, truth: Indices) -> dict[str, Any]:
    from sklearn.metrics import cohen_kappa_score

    ratings = np.asarray([float(label) for label in labels])
    actual, expected, chosen = ratings[truth], probabilities @ ratings, ratings[probabilities.argmax(1)]
    dissatisfied = actual <= DISSATISFIED_UP_TO
    found = probabilities[:, ratings <= DISSATISFIED_UP_TO].sum(1) >= 0.5
    return {
        **_classification(labels, probabilities, truth),
        "mean_absolute_error": float(np.abs(expected - actual).mean()),
        "root_mean_squared_error": float(np.sqrt(((expected - actual) ** 2).mean())),
        "quadratic_kappa": float(cohen_kappa_score(actual, chosen, weights="quadratic")),
        "dissatisfied_recall": float(found[dissatisfied].mean()) if dissatisfied.any() else None,
    }


def _write(
    kind: str,
    best: Scored,
    tried: Sequence[Scored],
    examples: Sequence[Example[Any]],
    data: Path,
    out: Path,
    rated: bool,
    calibration: Calibration,
    measured: dict[str, Any],
) -> ModelCard:
    import sklearn
    import skops
    import skops.io

    pipeline = best.candidate.pipeline().fit([item for item, _ in examples], [label for _, label in examples])
    # The calibration becomes part of the weights: softmax of the stored pipeline's scores is calibrated.
    pipeline[-1].coef_ /= calibration.temperature
    pipeline[-1].intercept_ = (pipeline[-1].intercept_ - calibration.none_level) / calibration.temperature
    artefact = skops.io.dumps(pipeline)
    path = out / f"{kind}.skops"
    content = {
        "schema": CARD_SCHEMA,
        "kind": kind,
        "artefact_sha256": sha256_bytes(artefact),
        "data": "rated" if rated else "generated",
        "data_file": data.name,
        "data_sha256": sha256_file(data),
        "examples": len(examples),
        "labels": dict(sorted(Counter(label for _, label in examples).items())),
        "folds": FOLDS,
        "seed": SEED,
        "chosen": best.candidate.describe(),
        "candidates": [
            {**one.candidate.describe(), "quality": one.quality, "standard_error": one.standard_error}
            for one in tried
        ],
        "temperature": calibration.temperature,
        "none_level": calibration.none_level if best.candidate.by_label else None,
        "measured": measured,
        # evalkit widens the interval of dialogue/satisfaction by this.
        **{key: measured[key] for key in ("mean_absolute_error",) if key in measured},
        "versions": {
            "python": platform.python_version(),
            "scikit-learn": sklearn.__version__,
            "skops": skops.__version__,
            "numpy": np.__version__,
        },
    }
    write_bytes_atomic(path, artefact)
    write_json_atomic(card_path(path), content)
    return ModelCard(card_path(path), content)
