"""Drift-aware validation: the validation texts re-weighted to what the network is being trained on at the moment."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from evalkit.checks import function, instance, several, shown, whole
from evalkit.errors import InputError
from evalkit.metrics.context import ResampleSetup
from evalkit.resampling.bins import CellCounts
from evalkit.resampling.features import Feature, feature_matrix
from evalkit.resampling.reweighting import ReweightingSettings
from evalkit.resampling.setup import ValidationSide, validation_side
from evalkit.scoring.texts import TextItem
from evalkit.tokenization import TextTokenizer
from evalkit.training.distributed import Ranks

# A text as the training has it: as it stands, or its token ids.
TrainingText = str | npt.NDArray[np.integer[Any]] | Sequence[int]
BatchTexts = Callable[[Any], Sequence[TrainingText]]


class Drift:
    """Keeps the texts of the latest training batches and re-weights the validation texts to them.

    A step only puts its texts into the window; features are measured when an evaluation asks for them. Give it to
    `EvalCallback(drift=...)`: its records then hold every metric of the texts a second time, as the slice `resampled`.
    On several ranks the window is that of all of them, and all have the same weights.
    """

    def __init__(
        self,
        batch_texts: BatchTexts,
        features: Sequence[Feature],
        *,
        window: int = 2000,
        settings: ReweightingSettings | None = None,
        seed: int = 0,
    ) -> None:
        """Prepare.

        Args:
            batch_texts: gives the texts of the current batch, whole ones, from the fields that MindSpore's callbacks have
                (`run_context.original_args()`; the batch is its `train_dataset_element`). Token ids are decoded when
                they are needed. It is called after every step, so let it do little.
            features: by which texts are compared; see `evalkit.resampling.features`.
            window: texts that are kept, the latest; over all ranks.
            settings: how weights are made, and their floors.
            seed: of a density-ratio classifier's folds.

        Raises:
            InputError: an argument is of the wrong kind, there is no feature, or the window is empty.
        """
        function("drift: batch_texts", batch_texts, "a function of the callback's fields", inputs=1)
        self._batch_texts, self._features = batch_texts, several("drift: features", features, "features")
        if not self._features:
            raise InputError("drift: at least one feature is needed")
        for feature in self._features:
            what = "a feature of evalkit.resampling.features, e.g. token_length(...) or from_function(name, function),"
            instance("drift: features", feature, Feature, what)
        names = [feature.name for feature in self._features]
        if len(set(names)) < len(names):
            raise InputError(f"drift: features: a name is there twice ({', '.join(names)}); rename one")
        self._size = whole("drift: window", window, least=1)
        self._settings = settings or ReweightingSettings()
        instance("drift: settings", self._settings, ReweightingSettings, "ReweightingSettings(...)")
        self._seed = whole("drift: seed", seed, least=0)
        self._side: ValidationSide | None = None
        self._tokenizer: TextTokenizer | None = None
        self.forget()

    def begin(self, texts: Sequence[TextItem], tokenizer: TextTokenizer) -> None:
        """Measure the validation texts, once.

        Raises:
            InputError: none of them can be scored, or a feature fails.
        """
        if self._side is None:
            try:
                self._side, self._tokenizer = validation_side(self._features, texts), tokenizer
            except InputError as error:
                raise InputError(f"drift: the validation texts: {error}") from None

    def forget(self) -> None:
        """Empty the window: another training begins."""
        # Each text with the number of its batch.
        self._window: deque[tuple[int, TrainingText]] = deque(maxlen=self._size)
        self._batches = 0
        self._problem: str | None = None

    def see(self, arguments: Any) -> None:
        """Take the texts of the current batch. Where that fails, the reason stands in the next records."""
        if self._problem is not None:
            return
        try:
            found = several("batch_texts", self._batch_texts(arguments), "texts or token ids")
            self._window.extend((self._batches, _kept(text)) for text in found)
            self._batches += 1
        except Exception as error:  # a user's function may raise anything, and the training is worth more
            self._problem = _told("the batch's texts", error)

    def setup(self, ranks: Ranks | None = None, key: int | str = 0) -> ResampleSetup:
        """The weights for the texts in the window, as the metrics take them.

        Counts of texts by joint bin are all that the ranks tell each other: whole numbers, which add up exactly. So the
        weights are those of one process that saw every rank's texts, batch by batch in the order of the ranks.

        Args:
            ranks: of a distributed training.
            key: of the evaluation; not used twice, and equal in all ranks.

        Raises:
            InputError: `begin` wasn't called.
            MissingRankError: a rank told nothing in time.
        """
        if self._side is None:
            raise InputError("drift: the training hasn't begun; call begin with the validation texts first")
        together = ranks if ranks is not None and ranks.size > 1 else None
        kept = len(self._window)
        if together is not None:
            sizes = [*Counter(batch for batch, _ in self._window).items()]
            kept = _share_of_window(together.exchange(key, "window", sizes), together.rank, self._size)
        problem, counts = self._count(self._side, kept)
        if together is not None:
            told = together.exchange(key, "counts", {"problem": problem, "counts": counts.rows()})
            failed = [(rank, one["problem"]) for rank, one in enumerate(told) if one["problem"] is not None]
            problem = f"rank {failed[0][0]}: {failed[0][1]}" if failed else None
            width = len(self._features)
            counts = CellCounts.merged([CellCounts.from_rows(one["counts"], width) for one in told])
        if problem is None:
            try:
                return self._side.setup(counts, self._settings, self._seed)
            except Exception as error:  # the plain metrics stay
                problem = _told("the weights", error)
        return self._side.without_weights(f"drift: {problem}", self._settings, self._seed)

    def _count(self, side: ValidationSide, kept: int) -> tuple[str | None, CellCounts]:
        """What is wrong with this rank's texts, if anything, and how its latest `kept` ones lie in the bins."""
        nothing = np.empty((0, len(self._features)))
        problem = self._problem
        if problem is None:
            latest = islice(self._window, len(self._window) - kept, None)
            try:
                texts = [self._text(text) for _, text in latest]
                return None, side.counts(feature_matrix(self._features, texts), self._settings)
            except Exception as error:  # features may be the user's code
                problem = _told("the features of the training texts", error)
        return problem, side.counts(nothing, self._settings)

    def _text(self, text: TrainingText) -> str:
        assert self._tokenizer is not None  # `begin` has set both
        return text if isinstance(text, str) else self._tokenizer.decode([int(one) for one in text])


def _kept(text: Any) -> TrainingText:
    """A text of its own memory: a kept tensor would hold the device's, a view that of the data pipeline."""
    if isinstance(text, str):
        return text
    ids = np.array(text.asnumpy() if hasattr(text, "asnumpy") else text)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise InputError(f"a text, or the token ids of one, is needed (got {shown(text)})")
    return ids


def _share_of_window(sizes: Sequence[Sequence[Sequence[int]]], rank: int, size: int) -> int:
    """How many of a rank's texts are among the latest `size` of all ranks.

    Args:
        sizes: of each rank the (batch, texts) that its own window holds.
        rank: which one is asked about.
        size: of the window.
    """
    latest = sorted(
        ((batch, owner, count) for owner, rows in enumerate(sizes) for batch, count in rows), reverse=True
    )
    kept = 0
    for _, owner, count in latest:
        taken = min(count, size)
        size -= taken
        kept += taken if owner == rank else 0
    return kept


def _told(what: str, error: Exception) -> str:
    kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
    return f"{what}: {kind}{' '.join(str(error).split()):.300}"


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
