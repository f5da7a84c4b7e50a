"""A fitted scikit-learn text pipeline as plain arrays, so that one prediction costs about 0.05 ms instead of 0.8.

Artefacts are scikit-learn pipelines of a TfidfVectorizer with one of our feature functions and a linear classifier
(multinomial LogisticRegression, or LinearSVC), stored by skops (no pickle): only the types of an allow-list are loaded.
The classifier's weights are calibrated: the softmax of its scores is the probability. A LinearSVC decides label by
label: the score 0 stands in the softmax as "none of these", so that a text which no label claims is probable under none,
and the probabilities may add up to less than 1.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evalkit.errors import InputError
from sandbox.business.features import intent_features, satisfaction_features, word_features

Float64 = npt.NDArray[np.float64]

_KINDS = (("TfidfVectorizer", "LogisticRegression"), ("TfidfVectorizer", "LinearSVC"))

# A training set may bring examples of what the bot isn't for, under this label.
OUT_OF_SCOPE = "out_of_scope"

# Beyond what skops trusts by itself (scikit-learn's estimators, numpy arrays, plain containers).
TRUSTED_TYPES = tuple(
    f"{function.__module__}.{function.__qualname__}"
    for function in (intent_features, satisfaction_features, word_features)
)


def softmax(scores: Float64, *, none_of_these: bool) -> Float64:
    """Probabilities of scores [items, labels]; with `none_of_these` a further score of 0 takes its share."""
    # A ufunc's `reduce` is what the methods of arrays call, three frames of Python later.
    highest = np.maximum.reduce(scores, axis=1, keepdims=True)
    if none_of_these:
        np.maximum(highest, 0.0, out=highest)
    exponentials: Float64 = scores - highest
    np.exp(exponentials, out=exponentials)
    total = np.add.reduce(exponentials, axis=1, keepdims=True)
    if none_of_these:
        total += np.exp(-highest)
    exponentials /= total
    return exponentials


@dataclass(frozen=True)
class LinearTextModel:
    """Softmax over a linear map of weighted feature counts.

    Attributes:
        labels: the classes, in the order of the probabilities.
        features: what turns an input into a list of features.
        columns: feature → row of `weights`.
        scale: float64 [features], the inverse document frequency (1 where unused).
        weights: float64 [features, labels]; `bias`: float64 [labels].
        binary, sublinear, unit_length: how counts are weighted, as in TfidfVectorizer.
        none_of_these: whether the score 0 stands for "none of these".
    """

    labels: tuple[str, ...]
    features: Callable[[Any], list[str]]
    columns: dict[str, int]
    scale: Float64
    weights: Float64
    bias: Float64
    binary: bool
    sublinear: bool
    unit_length: bool
    none_of_these: bool

    @classmethod
    def from_pipeline(cls, pipeline: Any) -> "LinearTextModel":
        """Take the arrays out of a fitted pipeline made by `sandbox fit`."""
        vectoriser, classifier = pipeline[0], pipeline[-1]
        weights, bias = classifier.coef_, classifier.intercept_
        by_label = type(classifier).__name__ == "LinearSVC"
        if len(classifier.classes_) == 2:  # scikit-learn keeps one column: the second class against the first
            first = -1.0 if by_label else 0.0
            weights, bias = np.vstack([first * weights, weights]), np.concatenate([first * bias, bias])
        columns = {str(feature): int(column) for feature, column in vectoriser.vocabulary_.items()}
        return cls(
            labels=tuple(str(label) for label in classifier.classes_),
            features=vectoriser.analyzer,
            columns=columns,
            scale=np.asarray(vectoriser.idf_ if vectoriser.use_idf else np.ones(len(columns)), np.float64),
            weights=np.ascontiguousarray(weights.T, np.float64),
            bias=np.asarray(bias, np.float64),
            binary=vectoriser.binary,
            sublinear=vectoriser.sublinear_tf,
            unit_length=vectoriser.norm == "l2",
            none_of_these=by_label,
        )

    def probabilities(self, item: Any) -> Float64:
        """Probability of each label, float64 [labels]."""
        return np.asarray(self.probabilities_of([item])[0], np.float64)

    def probabilities_of(self, items: Sequence[Any]) -> Float64:
        """The same of several items at once, float64 [items, labels].

        A row doesn't depend on the others, to the bit: sums over an item's features run over that item alone, in the
        order of its features, whatever stands beside it.
        """
        scores = np.empty((len(items), len(self.bias)))
        for item, row in zip(items, scores, strict=True):
            self._score(item, row)
        return softmax(scores, none_of_these=self.none_of_these)

    def _score(self, item: Any, scores: Float64) -> None:
        """Write the classifier's scores of an item, float64 [labels].

        Few calls of numpy rather than one sparse matrix: that alone would cost as much as all of this.
        """
        counts = self._counts(item)
        if not counts:
            scores[:] = self.bias
            return
        rows = np.fromiter(counts, np.intp, len(counts))
        values = np.ones(len(rows)) if self.binary else np.fromiter(counts.values(), np.float64, len(rows))
        if self.sublinear:
            values = 1.0 + np.log(values)
        values *= self.scale[rows]
        if self.unit_length:
            values /= np.sqrt(np.add.accumulate(values * values)[-1])
        terms = self.weights[rows]
        terms *= values[:, None]
        np.add.reduce(terms, axis=0, out=scores)
        scores += self.bias

    def _counts(self, item: Any) -> "Counter[int | None]":
        counts = Counter(map(self.columns.get, self.features(item)))
        del counts[None]  # features that the model doesn't know
        return counts


def load_linear_model(
    path: Path, features: Sequence[Callable[[Any], list[str]]], fit_command: str
) -> LinearTextModel:
    """Load an artefact.

    Args:
        path: the .skops file.
        features: the feature functions that this kind of artefact may use.
        fit_command: what makes such a file, for the message.

    Raises:
        InputError: not such an artefact, or one that holds types beyond the allow-list.
    """
    import zipfile

    import skops.io
    from skops.io.exceptions import UntrustedTypesFoundException

    advice = f"train it with `{fit_command}`"
    if not path.is_file():
        raise InputError(f"{path}: no such file; {advice}")
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path}: not a skops file; {advice}")
    try:
        pipeline = skops.io.load(path, trusted=list(TRUSTED_TYPES))
    except UntrustedTypesFoundException as error:
        raise InputError(
            f"{path}: holds types that aren't trusted ({error}); don't use this file, {advice}"
        ) from None
    except Exception as error:  # a damaged archive fails in many ways inside zipfile, json, numpy and skops
        raise InputError(f"{path}: can't be read ({type(error).__name__}: {error}); {advice}") from None
    if _steps(pipeline) not in _KINDS or pipeline[0].analyzer not in features:
        raise InputError(f"{path}: not an artefact of this kind; {advice}")
    return LinearTextModel.from_pipeline(pipeline)


def _steps(pipeline: Any) -> Sequence[str]:
    from sklearn.pipeline import Pipeline

    return tuple(type(step).__name__ for _, step in pipeline.steps) if isinstance(pipeline, Pipeline) else ()
