"""How artefacts may be made: candidates of features and classifier, and the choice between them by cross-validation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sandbox.business.examples import MIN_EXAMPLES, Example
from sandbox.business.features import intent_features, satisfaction_features, word_features
from sandbox.business.linear_model import OUT_OF_SCOPE, softmax

Float64 = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

SEED = 2024
FOLDS = MIN_EXAMPLES


@dataclass(frozen=True)
class Candidate:
    """One way to make an artefact.

    Attributes:
        features: the feature function.
        vectoriser: settings of the TfidfVectorizer.
        classifier: logistic (multinomial logistic regression) or svm (one linear support vector machine a label).
        inverse_regularisation: C of either.
    """

    features: Callable[[Any], list[str]]
    vectoriser: tuple[tuple[str, Any], ...]
    classifier: Literal["logistic", "svm"]
    inverse_regularisation: float

    @property
    def by_label(self) -> bool:
        """Whether each label is decided on its own, so that none may apply: see `sandbox.business.linear_model`."""
        return self.classifier == "svm"

    def describe(self) -> dict[str, Any]:
        """For the model card."""
        return {
            "features": self.features.__name__,
            "classifier": self.classifier,
            "inverse_regularisation": self.inverse_regularisation,
        }

    def pipeline(self, features: Callable[[Any], list[str]] | None = None) -> Any:
        """An unfitted scikit-learn pipeline; `features` in place of its own where they were taken before."""
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import Pipeline
        from sklearn.svm import LinearSVC

        vectoriser = TfidfVectorizer(analyzer=features or self.features, **dict(self.vectoriser))
        # Labels count alike in the SVM, however many examples each has.
        classifier = (
            LogisticRegression(C=self.inverse_regularisation, max_iter=2000, random_state=SEED)
            if self.classifier == "logistic"
            else LinearSVC(
                C=self.inverse_regularisation, class_weight="balanced", tol=1e-3, random_state=SEED
            )
        )
        return Pipeline([("features", vectoriser), ("classifier", classifier)])


_WEIGHTED = (("sublinear_tf", True),)
_PRESENCE = (("binary", True), ("norm", None), ("use_idf", False))

# Characters within words forgive the typing errors that clean examples don't show.
INTENT = (
    Candidate(intent_features, _WEIGHTED, "svm", 1.0),
    Candidate(intent_features, _WEIGHTED, "svm", 2.0),
    Candidate(word_features, _WEIGHTED, "svm", 1.0),
)
SATISFACTION = tuple(
    Candidate(satisfaction_features, _PRESENCE, "logistic", strength) for strength in (0.3, 1.0, 0.1)
)


@dataclass(frozen=True)
class Scored:
    """A candidate's scores of examples it hadn't seen.

    Attributes:
        candidate: which.
        labels: sorted; truth: index of each example's label.
        scores: logits, float64 [examples, labels].
        quality: by which candidates are compared: higher is better; standard_error: of that.
    """

    candidate: Candidate
    labels: list[str]
    truth: Indices
    scores: Float64
    quality: float
    standard_error: float


def choose(
    candidates: Sequence[Candidate],
    examples: Sequence[Example[Any]],
    quality: Callable[[list[str], Float64, Indices], tuple[float, float]],
) -> tuple[Scored, list[Scored]]:
    """Every candidate cross-validated on the same folds, and the one to take.

    Taken is the first that the best one isn't clearly better than: its quality is within one standard error of the best
    (Breiman et al. 1984). So the order says what is preferred where the examples don't decide.

    Args:
        candidates: what there is to choose from, the sturdiest first.
        examples: item and label of each.
        quality: its value and standard error, of labels, scores and truth.
    """
    from sklearn.model_selection import StratifiedKFold

    labels = sorted({label for _, label in examples})
    truth = np.asarray([labels.index(label) for _, label in examples])
    folds = list(StratifiedKFold(FOLDS, shuffle=True, random_state=SEED).split(truth, truth))
    taken: dict[Callable[[Any], list[str]], list[list[str]]] = {}
    found = []
    for candidate in candidates:
        if candidate.features not in taken:
            taken[candidate.features] = [candidate.features(item) for item, _ in examples]
        scores = _unseen(candidate, taken[candidate.features], truth, len(labels), folds)
        found.append(Scored(candidate, labels, truth, scores, *quality(labels, scores, truth)))
    best = max(found, key=lambda scored: scored.quality)
    return next(one for one in found if one.quality >= best.quality - best.standard_error), found


def _unseen(
    candidate: Candidate,
    features: list[list[str]],
    truth: Indices,
    labels: int,
    folds: Sequence[tuple[Indices, Indices]],
) -> Float64:
    scores = np.zeros((len(truth), labels))
    for train, test in folds:
        pipeline = candidate.pipeline(_taken).fit([features[index] for index in train], truth[train])
        found = np.asarray(pipeline.decision_function([features[index] for index in test]))
        if found.ndim == 1:  # of two labels, the second against the first
            found = np.stack([-found if candidate.by_label else np.zeros_like(found), found], 1)
        scores[test] = found
    return scores


def _taken(features: list[str]) -> list[str]:
    return features


@dataclass(frozen=True)
class Calibration:
    """How raw scores become probabilities: softmax((scores - none_level) / temperature).

    Attributes:
        temperature: see `fit_temperature`.
        none_level: the raw score of "none of these", see `none_level`; 0 where every item has a label.
    """

    temperature: float
    none_level: float


def fit_temperature(scores: Float64, truth: Indices) -> float:
    """The divisor of the scores that makes the unseen labels most likely (Guo et al. 2017)."""
    from scipy.optimize import minimize_scalar

    def loss(log_temperature: float) -> float:
        probabilities = softmax(scores / np.exp(log_temperature), none_of_these=False)
        return float(-np.log(np.maximum(probabilities[np.arange(len(truth)), truth], 1e-300)).mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-3.0, 3.0), method="bounded").x))


def none_level(scored: Scored) -> float:
    """The raw score of "none of these": the boundary of a label, or lower, so that 95 % of the unseen texts that have a
    label score higher for one. Of two labels one score is the other's negative, and only the boundary itself is left."""
    inside = np.asarray([label != OUT_OF_SCOPE for label in scored.labels])
    if not scored.candidate.by_label or len(scored.labels) == 2:
        return 0.0
    best = scored.scores[:, inside].max(1)[inside[scored.truth]]
    return min(0.0, float(np.quantile(best, 0.05)))
