"""Scoring with a MindSpore model in memory, for example the one that is being trained."""

import hashlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from evalkit.backends.base import Float32Array, IntArray, RowStats
from evalkit.backends.runtime import mindspore_session
from evalkit.errors import InputError

if TYPE_CHECKING:
    from mindspore import Tensor, nn

# (network, token_ids) or (network, token_ids, positions, segments) to logits.
LogitsFunction = Callable[..., Any]

_PACKED = 3  # token_ids, positions, segments
# Of the scoring head: logprob, entropy, margin, rank, top_id.
_Outputs = tuple[Float32Array, Float32Array, Float32Array, IntArray, IntArray]

_HOW = (
    "give logits=FUNCTION, called as FUNCTION(network, token_ids) or, for a network that keeps the texts of a row "
    "apart, FUNCTION(network, token_ids, positions, segments); it returns (rows, length, vocabulary)"
)


class CheckpointBackend:
    """A cell that gives logits, with evalkit's scoring head behind it.

    The cell is called with int32 tensors of shape (rows, length) and returns logits (rows, length, vocabulary) or
    (rows * length, vocabulary):

    - `network(token_ids)`: each row holds one text, padded behind its end; what a causal model says of a token doesn't
      depend on what follows;
    - `network(token_ids, positions, segments)`: rows hold several texts, see `Backend.score`;
    - any other network is called by the function `logits`, e.g. `lambda network, token_ids: network.backbone(token_ids)`.

    Scoring switches the cell to evaluation (no dropout) and puts back the mode that every part of it had.
    """

    name = "checkpoint"

    def __init__(
        self, network: "nn.Cell", *, vocab_size: int, max_length: int, logits: LogitsFunction | None = None
    ) -> None:
        """Wrap the network and run it once on two tokens, to see what it gives.

        Its parameters are used where they are, so that later steps of a training are seen.

        Args:
            network: the model.
            vocab_size: of the tokenizer; the logits may be wider (a padded vocabulary), never narrower.
            max_length: longest text that the network reads.
            logits: how to call the network, where it doesn't give logits itself.

        Raises:
            InputError: the network, or the function, takes neither 1 nor 3 inputs or doesn't give logits.
        """
        self.max_length = max_length
        self._network = network
        self.precision = _precision(network)
        self._inputs = count_inputs(network, logits)
        self._logits = logits
        self.vocab_size = self._logits_width(vocab_size)
        with mindspore_session():
            from evalkit.scoring.head import ScoringHead

            self._head = ScoringHead(self.vocab_size)

    @property
    def model_digest(self) -> str:
        """SHA-256 over names, types, shapes and values of the parameters as they are now."""
        digest = hashlib.sha256()
        with mindspore_session():
            for parameter in sorted(self._network.get_parameters(), key=lambda item: str(item.name)):
                digest.update(f"{parameter.name} {parameter.dtype} {parameter.shape}\n".encode())
                digest.update(parameter.asnumpy().tobytes())
        return digest.hexdigest()

    def score(
        self, token_ids: IntArray, targets: IntArray, positions: IntArray, segments: IntArray
    ) -> RowStats:
        """See `Backend.score`."""
        if self._inputs == _PACKED:
            return RowStats(*self._run(token_ids, targets, positions, segments))
        return self._score_apart(token_ids, targets, segments)

    def _score_apart(self, token_ids: IntArray, targets: IntArray, segments: IntArray) -> RowStats:
        """Each text in a row of its own, as many rows a call as the packed batch had positions for."""
        texts = _texts(segments)
        longest = max((end - start for _, start, end in texts), default=1)
        length = min(self.max_length, 1 << (longest - 1).bit_length())
        rows = max(1, token_ids.size // length)
        found = _blank(token_ids.shape)
        for first in range(0, len(texts), rows):
            part = texts[first : first + rows]
            fed, asked, places, kept = (np.zeros((rows, length), dtype=np.int32) for _ in range(4))
            for index, (row, start, end) in enumerate(part):
                own = (index, slice(end - start))
                fed[own], asked[own] = token_ids[row, start:end], targets[row, start:end]
                places[own], kept[own] = np.arange(end - start), 1
            stats = self._run(fed, asked, places, kept)
            for index, (row, start, end) in enumerate(part):
                for target, values in zip(found, stats, strict=True):
                    target[row, start:end] = values[index, : end - start]
        return RowStats(*found)

    def _run(
        self, token_ids: IntArray, targets: IntArray, positions: IntArray, segments: IntArray
    ) -> _Outputs:
        """The head's outputs, in the order of `RowStats`."""
        with mindspore_session() as mindspore, _evaluating(self._network):
            inputs = [mindspore.Tensor(array) for array in (token_ids, positions, segments)]
            try:
                logits = self._call(inputs).reshape(-1, self.vocab_size)
                outputs = self._head(logits, mindspore.Tensor(targets.reshape(-1)))
                logprob, entropy, margin, rank, top_id = (
                    output.asnumpy().reshape(token_ids.shape) for output in outputs
                )
                return logprob, entropy, margin, rank, top_id
            except ValueError as error:
                raise InputError(f"the model in memory can't score these rows ({error})") from None

    def _call(self, inputs: "list[Tensor]") -> Any:
        given = inputs[: self._inputs]
        return self._network(*given) if self._logits is None else self._logits(self._network, *given)

    def _logits_width(self, vocab_size: int) -> int:
        with mindspore_session() as mindspore, _evaluating(self._network):
            arrays = ([[0, 0]], [[0, 1]], [[1, 1]])
            inputs = [mindspore.Tensor(np.array(array, dtype=np.int32)) for array in arrays]
            try:
                found = self._call(inputs)
            except (TypeError, ValueError, RuntimeError, AttributeError) as error:
                reason = str(error).strip().splitlines()[0]
                raise InputError(f"the network can't be called on token ids ({reason}); {_HOW}") from None
            shape = tuple(getattr(found, "shape", ()))
        if len(shape) < 2 or shape[:-1] not in ((1, 2), (2,)):
            what = f"a tensor of shape {shape}" if hasattr(found, "shape") else f"a {type(found).__name__}"
            raise InputError(f"two tokens give {what} instead of logits (1, 2, vocabulary); {_HOW}")
        if not isinstance(found, mindspore.Tensor):
            raise InputError(
                f"two tokens give a {type(found).__name__} instead of a MindSpore tensor; {_HOW}"
            )
        values = found.asnumpy().reshape(2, -1).astype(np.float64)
        if (values >= 0).all() and np.allclose(values.sum(-1), 1, atol=1e-3):
            raise InputError("the network gives probabilities; give the logits, before any softmax")
        if shape[-1] < vocab_size:
            raise InputError(
                f"the logits are {shape[-1]} wide, the tokenizer has {vocab_size} ids; give the tokenizer of this network"
            )
        return int(shape[-1])


@contextmanager
def _evaluating(network: "nn.Cell") -> Iterator[None]:
    """Evaluation mode for a while; each cell gets its own flag back, for both execution modes."""
    modes = [(cell, cell.training) for _, cell in network.cells_and_names()]
    network.set_train(False)
    try:
        yield
    finally:
        for cell, training in modes:
            cell.add_flags(training=training)


def _blank(shape: tuple[int, ...]) -> _Outputs:
    logprob, entropy, margin = (np.zeros(shape, dtype=np.float32) for _ in range(3))
    return logprob, entropy, margin, np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.int32)


def _precision(network: "nn.Cell") -> str:
    """The lowest precision that a part of the network computes in; the scoring head is float32 in any case."""
    names = {name for _, cell in network.cells_and_names() for name, on in cell.get_flags().items() if on}
    kinds = {str(parameter.dtype) for parameter in network.get_parameters()}
    for precision, kind in (("bf16", "BFloat16"), ("fp16", "Float16")):
        if precision in names or kind in kinds:
            return precision
    return "fp32"


def _texts(segments: IntArray) -> list[tuple[int, int, int]]:
    """(row, start, end) of each segment."""
    found = []
    for row, numbers in enumerate(segments):
        edges = np.flatnonzero(np.diff(numbers, prepend=0, append=0))
        spans = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        found += [(row, start, end) for start, end in spans if numbers[start]]
    return found


def count_inputs(network: "nn.Cell", logits: LogitsFunction | None) -> int:
    """1 or 3: how many tensors the network, or the function in front of it, takes.

    Raises:
        InputError: another number, or one that can't be known.
    """
    what = type(network).__name__ if logits is None else "the function logits"
    try:
        signature = inspect.signature(network.construct if logits is None else logits)
    except (TypeError, ValueError):
        raise InputError(f"{what} doesn't tell its parameters; {_HOW}") from None
    required = [
        parameter for parameter in signature.parameters.values() if parameter.default is parameter.empty
    ]
    positional = [one for one in required if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    keywords = [one.name for one in required if one.kind is one.KEYWORD_ONLY]
    if keywords:
        raise InputError(f"{what} needs {keywords[0]} by name, which nobody gives; {_HOW}")
    if logits is not None and not positional:
        raise InputError(f"{what} takes no network and no token ids; {_HOW}")
    count = len(positional) - (0 if logits is None else 1)
    if count not in (1, _PACKED):
        raise InputError(f"{what} takes {count} inputs, so it isn't known how to get logits from it; {_HOW}")
    return count
