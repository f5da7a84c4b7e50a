"""What can score token ids. A new backend is one class with the attributes and the method below."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]

# Before the digest of a model whose identity evalkit can't verify.
DECLARED = "declared:"


@dataclass(frozen=True)
class RowStats:
    """Statistics of the targets of one batch, all of shape (rows, row length); natural logarithms.

    Values at positions where nothing was asked are arbitrary. A backend that can't know a statistic gives None for it,
    and the metrics that need it have no value.

    Attributes:
        logprob: ln p(target).
        entropy: of the next-token distribution, nats.
        margin: ln p(target) - the largest ln p of any other token.
        rank: 1 + tokens with a logit above the target's.
        top_id: the most probable token.
        failed: why a segment has no statistics, by (row, segment): its text is counted as an error, the others stand.
        cached_from: the run that computed them, where they were read from the result cache.
    """

    logprob: Float32Array
    entropy: Float32Array | None = None
    margin: Float32Array | None = None
    rank: IntArray | None = None
    top_id: IntArray | None = None
    failed: Mapping[tuple[int, int], str] = field(default_factory=dict)
    cached_from: str | None = None


class Backend(Protocol):
    """A model that gives the log-probabilities of given tokens (teacher forcing).

    A user's own backend is any object like this, no base class is needed: docs/backends.md has one of 30 lines.

    Attributes:
        name: short, for reports: mindir, onnx, ...
        model_digest: identity of the model, SHA-256 hex.
        precision: of the arithmetic that gives the log-probabilities, e.g. fp32; part of the signature.
        max_length: longest segment that the model can read.
        vocab_size: token ids lie in [0, vocab_size).

    A backend may have two more attributes. `batch_rows`: how many rows it wants in one call at least, while there are so
    many. `parallel_calls`: how many calls of `score` may run at once, in threads that aren't the caller's; without it
    every call comes from the caller's thread.
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
