"""Drift-aware validation: the validation texts re-weighted to what the network is being trained on at the moment."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from evalkit.errors import InputError
from evalkit.metrics.context import ResampleSetup
from evalkit.metrics.estimators import FloatArray
from evalkit.resampling.features import Feature, feature_matrix
from evalkit.resampling.reweighting import ReweightingSettings
from evalkit.resampling.setup import ValidationSide, validation_side
from evalkit.scoring.texts import TextItem
from evalkit.tokenization import TextTokenizer

# A text as the training has it: as it stands, or its token ids.
TrainingText = str | npt.NDArray[np.integer[Any]] | Sequence[int]
BatchTexts = Callable[[Any], Sequence[TrainingText]]


class Drift:
    """Keeps the texts of the latest training batches and re-weights the validation texts to them.

    A step only puts its texts into the window; features are measured when an evaluation asks for them. Give it to
    `EvalCallback(drift=...)`: its records then hold every metric of the texts a second time, as the slice `resampled`.
    """

    def __init__(
        self,
        batch_texts: BatchTexts,
        features: Sequence[Feature],
        *,
        window: int = 2000,
        settings: ReweightingSettings | None = None,
        seed: int = 0,
        gather: Callable[[FloatArray], FloatArray] | None = None,
    ) -> None:
        """Prepare.

        Args:
            batch_texts: gives the texts of the current batch, whole ones, from the fields that MindSpore's callbacks have
                (`run_context.original_args()`; the batch is its `train_dataset_element`). Token ids are decoded when
                they are needed. It is called after every step, so let it do little.
            features: by which texts are compared; see `evalkit.resampling.features`.
            window: texts that are kept, the latest.
            settings: how weights are made, and their floors.
            seed: of a density-ratio classifier's folds.
            gather: on several ranks joins the features of their windows, (texts, features) each, in the order of the
                ranks; then every rank has equal weights. None: one rank.

        Raises:
            InputError: no feature, or an empty window.
        """
        if not features:
            raise InputError("drift: at least one feature is needed")
        if window < 1:
            raise InputError(f"drift: window: at least 1 text is needed (got {window})")
        self._batch_texts, self._features = batch_texts, tuple(features)
        self._window: deque[TrainingText] = deque(maxlen=window)
        self._settings, self._seed = settings or ReweightingSettings(), seed
        self._gather = gather
        self._side: ValidationSide | None = None
        self._tokenizer: TextTokenizer | None = None
        self._problem: str | None = None

    def begin(self, texts: Sequence[TextItem], tokenizer: TextTokenizer) -> None:
        """Measure the validation texts, once.

        Raises:
            InputError: none of them can be scored, or a feature fails.
        """
        if self._side is None:
            self._side, self._tokenizer = validation_side(self._features, texts), tokenizer

    def see(self, arguments: Any) -> None:
        """Take the texts of the current batch. Where that fails, the reason stands in the next records."""
        if self._problem is not None:
            return
        try:
            self._window.extend(self._batch_texts(arguments))
        except Exception as error:  # a user's function may raise anything, and the training is worth more
            self._problem = f"the batch's texts: {type(error).__name__}: {error}".splitlines()[0][:300]

    def setup(self) -> ResampleSetup:
        """The weights for the texts in the window, as the metrics take them.

        Raises:
            InputError: `begin` wasn't called, or a feature fails.
        """
        if self._side is None:
            raise InputError("drift: the training hasn't begun; call begin with the validation texts first")
        target = feature_matrix(self._features, [] if self._problem else list(self._texts()))
        if self._gather is not None:
            target = self._gather(target)
        found = self._side.setup(target, self._settings, self._seed)
        if self._problem is None:
            return found
        return ResampleSetup(found.weights, found.digest, self._problem, found.details)

    def _texts(self) -> Iterator[str]:
        assert self._tokenizer is not None  # `begin` has set both
        for text in self._window:
            yield text if isinstance(text, str) else self._tokenizer.decode([int(one) for one in text])


def packed_texts(
    token_ids: npt.NDArray[np.integer[Any]], segments: npt.NDArray[np.integer[Any]]
) -> list[npt.NDArray[np.integer[Any]]]:
    """The texts of packed rows, copied.

    Args:
        token_ids: shape (rows, length).
        segments: number of the text within its row from 1, 0 where there is padding; same shape.
    """
    found = []
    for ids, numbers in zip(np.asarray(token_ids), np.asarray(segments), strict=True):
        # A text lies in one piece: cut where the number changes.
        cuts = np.flatnonzero(np.diff(numbers)) + 1
        for part, number in zip(np.split(ids, cuts), np.split(numbers, cuts), strict=True):
            if len(number) and number[0] != 0:
                found.append(part.copy())
    return found


def padded_texts(token_ids: npt.NDArray[np.integer[Any]], padding: int) -> list[npt.NDArray[np.integer[Any]]]:
    """The texts of rows that hold one each, padded behind its end; copied.

    Args:
        token_ids: shape (rows, length).
        padding: the id that fills a row up.
    """
    rows = np.asarray(token_ids)
    lengths = rows.shape[1] - np.argmax(rows[:, ::-1] != padding, axis=1)
    lengths[(rows == padding).all(axis=1)] = 0
    return [row[:length].copy() for row, length in zip(rows, lengths, strict=True) if length]
