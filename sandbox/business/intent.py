"""The intent recogniser: what does the user want, and how sure is that."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sandbox.business.features import intent_features, word_features
from sandbox.business.linear_model import OUT_OF_SCOPE, Float64, LinearTextModel, load_linear_model
from sandbox.domain import IntentGuess

FEATURES = (intent_features, word_features)


@dataclass(frozen=True)
class IntentRecogniser:
    """A calibrated classifier with a threshold.

    Attributes:
        model: the classifier.
        out_of_scope_below: a text whose best intent is less probable is out of scope.
    """

    model: LinearTextModel
    out_of_scope_below: float

    @classmethod
    def load(cls, path: Path, out_of_scope_below: float) -> "IntentRecogniser":
        """Load intent.skops.

        Raises:
            InputError: the file isn't an intent recogniser.
        """
        return cls(load_linear_model(path, FEATURES, "sandbox fit intent"), out_of_scope_below)

    def recognise(self, text: str) -> IntentGuess:
        """The most probable intent of what the user said."""
        return self.recognise_all([text])[0]

    def recognise_all(self, texts: Sequence[str]) -> list[IntentGuess]:
        """The same of several texts at once; equal to the bit."""
        return [self._guess(probabilities) for probabilities in self.model.probabilities_of(texts)]

    def _guess(self, probabilities: Float64) -> IntentGuess:
        best = int(probabilities.argmax())
        label, probability = self.model.labels[best], float(probabilities[best])
        return IntentGuess(
            label=label,
            probability=probability,
            out_of_scope=label == OUT_OF_SCOPE or probability < self.out_of_scope_below,
            probabilities=dict(zip(self.model.labels, probabilities.tolist(), strict=True)),
        )
