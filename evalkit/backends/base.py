"""What can score token ids. A new backend is one class with the attributes and the method below."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class RowStats:
    """Statistics of the targets of one batch, all of shape (rows, row length); natural logarithms.

    Values at positions where nothing was asked are arbitrary.

    Attributes:
        logprob: ln p(target).
        entropy: of the next-token distribution, nats.
        margin: ln p(target) - the largest ln p of any other token.
        rank: 1 + tokens with a logit above the target's.
        top_id: the most probable token.
    """

    logprob: Float32Array
    entropy: Float32Array
    margin: Float32Array
    rank: IntArray
    top_id: IntArray


class Backend(Protocol):
    """A model that gives the log-probabilities of given tokens (teacher forcing).

    A user's own backend is any object like this (no base class is needed):

        class TableBackend:
            name, precision = "table", "fp32"

            def __init__(self, table):              # table[i, j] = ln p(j | i)
                self.table = table
                self.vocab_size, self.max_length = len(table), 1024
                self.model_digest = hashlib.sha256(table.tobytes()).hexdigest()

            def score(self, token_ids, targets, positions, segments):
                logprobs = self.table[token_ids]    # (rows, length, vocabulary)
                target = np.take_along_axis(logprobs, targets[..., None], -1)
                others = logprobs.copy()
                np.put_along_axis(others, targets[..., None], -np.inf, -1)
                return RowStats(
                    logprob=target[..., 0],
                    entropy=-(np.exp(logprobs) * logprobs).sum(-1),
                    margin=target[..., 0] - others.max(-1),
                    rank=1 + (logprobs > target).sum(-1),
                    top_id=logprobs.argmax(-1),
                )

    Attributes:
        name: short, for reports: mindir, onnx, ...
        model_digest: identity of the model, SHA-256 hex.
        precision: of the arithmetic that gives the log-probabilities, e.g. fp32; part of the signature.
        max_length: longest segment that the model can read.
        vocab_size: token ids lie in [0, vocab_size).

    A backend may have one more attribute, `parallel_calls`: how many calls of `score` may run at once, in threads that
    aren't the caller's. Without it every call comes from the caller's thread.
    """

    @property
    def name(self) -> str: ...

    @property
    def model_digest(self) -> str: ...

    @property
    def precision(self) -> str: ...

    @property
    def max_length(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    def score(
        self, token_ids: IntArray, targets: IntArray, positions: IntArray, segments: IntArray
    ) -> RowStats:
        """Score one batch; all arguments are int32 of shape (rows, row length).

        Args:
            token_ids: what is fed.
            targets: the token whose log-probability is asked at each position (0 where nothing is asked).
            positions: from 0 within each segment, ascending from left to right.
            segments: 0 is padding; equal numbers in a row are one text. A position attends only to positions
                of its own segment that aren't after it. The result at a position must not depend on other
                segments.

        Raises:
            InputError: the model can't score these ids.
        """
        ...
