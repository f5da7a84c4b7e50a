"""The satisfaction predictor: the rating from 1 to 5 that a user would give a turn."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evalkit.errors import InputError
from sandbox.business.features import RatedTurn, satisfaction_features
from sandbox.business.linear_model import Float64, LinearTextModel, load_linear_model
from sandbox.domain import SatisfactionGuess

RATINGS = (1, 2, 3, 4, 5)
DISSATISFIED_UP_TO = 2


@dataclass(frozen=True)
class SatisfactionPredictor:
    """A classifier over ratings.

    Attributes:
        model: the classifier; its labels are ratings.
        ratings: the labels as numbers.
    """

    model: LinearTextModel
    ratings: Float64

    @classmethod
    def load(cls, path: Path) -> "SatisfactionPredictor":
        """Load satisfaction.skops.

        Raises:
            InputError: the file isn't a satisfaction predictor.
        """
        model = load_linear_model(path, (satisfaction_features,), "sandbox fit satisfaction")
        if model.none_of_these or not set(model.labels) <= {str(rating) for rating in RATINGS}:
            raise InputError(
                f"{path}: its labels aren't ratings 1..5; train it with `sandbox fit satisfaction`"
            )
        return cls(model, np.asarray([float(label) for label in model.labels]))

    def predict(self, turn: RatedTurn) -> SatisfactionGuess:
        """Expected rating, and the probability that it's 1 or 2."""
        return self.predict_all([turn])[0]

    def predict_all(self, turns: Sequence[RatedTurn]) -> list[SatisfactionGuess]:
        """The same of several turns at once; equal to the bit."""
        return [
            SatisfactionGuess(
                score=float(probabilities @ self.ratings),
                probability_dissatisfied=float(probabilities[self.ratings <= DISSATISFIED_UP_TO].sum()),
            )
            for probabilities in self.model.probabilities_of(turns)
        ]
