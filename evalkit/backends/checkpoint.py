"""Scoring with a MindSpore model in memory, for example the one that is being trained."""

from typing import TYPE_CHECKING, Any

from evalkit.backends.base import IntArray, RowStats
from evalkit.backends.runtime import mindspore_session
from evalkit.errors import InputError

if TYPE_CHECKING:
    from mindspore import Tensor, nn


class CheckpointBackend:
    """A cell that gives logits, behind evalkit's scoring head.

    The cell is called with `token_ids`, `positions` and `segments`, int32 (rows, length) each, and returns logits
    (rows * length, vocabulary) or (rows, length, vocabulary). A model with other arguments is wrapped:

        class Adapter(nn.Cell):
            def __init__(self, model):
                super().__init__(auto_prefix=False)
                self.model = model

            def construct(self, token_ids, positions, segments):
                return self.model(token_ids, position_ids=positions, attention_mask=causal(segments, positions))

    Scoring switches the cell to evaluation (no dropout) and puts back the mode that every part of it had.
    """

    name = "checkpoint"
    precision = "fp32"

    def __init__(self, model: "nn.Cell", *, vocab_size: int, max_length: int, model_digest: str) -> None:
        """Wrap the cell; its parameters are used where they are, so that later steps of a training are seen.

        Args:
            model: gives the logits.
            vocab_size: width of the logits.
            max_length: longest text that the model reads.
            model_digest: identity of the weights, SHA-256 hex; the caller's to keep true when they change.
        """
        self.vocab_size, self.max_length, self.model_digest = vocab_size, max_length, model_digest
        self._model = model
        with mindspore_session():
            self._graph = _score_cell(model, vocab_size)

    def score(
        self, token_ids: IntArray, targets: IntArray, positions: IntArray, segments: IntArray
    ) -> RowStats:
        """See `Backend.score`."""
        with mindspore_session() as mindspore:
            modes = [(cell, cell.training) for _, cell in self._model.cells_and_names()]
            self._graph.set_train(False)
            try:
                inputs = (mindspore.Tensor(array) for array in (token_ids, targets, positions, segments))
                outputs = [output.asnumpy().reshape(token_ids.shape) for output in self._graph(*inputs)]
            except ValueError as error:
                raise InputError(f"the model in memory can't score these rows ({error})") from None
            finally:
                for cell, training in modes:
                    cell.add_flags(training=training)  # this cell alone, for both execution modes
        return RowStats(*outputs)


def _score_cell(model: "nn.Cell", vocab_size: int) -> Any:
    from mindspore import nn

    from evalkit.scoring.head import ScoringHead

    class ScoreCell(nn.Cell):  # type: ignore[misc]
        """The model and the head as one graph; parameters keep the names they have in the model."""

        def __init__(self) -> None:
            super().__init__(auto_prefix=False)
            self.model, self.head = model, ScoringHead(vocab_size)

        def construct(
            self, token_ids: "Tensor", targets: "Tensor", positions: "Tensor", segments: "Tensor"
        ) -> "tuple[Tensor, ...]":
            logits = self.model(token_ids, positions, segments).reshape(-1, vocab_size)
            return self.head(logits, targets.reshape(-1))  # type: ignore[no-any-return]

    return ScoreCell()
