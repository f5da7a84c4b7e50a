"""The top-1 outcome of each scored token: the largest probability that the model gave, and whether it gave it rightly.

With p(v) the model's next-token distribution, the confidence of a token is max over v of p(v); its outcome is 1 where the
token that came has that probability (rank 1, as for top_k_accuracy), else 0. Both follow from what is stored anyway:
the confidence is p(target) at rank 1, and elsewhere exp(ln p(target) - margin), since the margin is ln p(target) minus
the largest ln p of any other token.

Kept for each text and class as 32 bits a token: the confidence as a multiple of 2**-30, and the outcome in the lowest
bit. Texts are put together by joining these lists, so that bins of equally many tokens are exact, whatever the order.
"""

import base64
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from evalkit.metrics.accumulators import FRACTION_BITS, UNIT

if TYPE_CHECKING:
    from evalkit.metrics.estimators import FloatArray

PackedArray = npt.NDArray[np.uint32]
_STORED = np.dtype("<u4")


def top1_outcomes(
    logprob: npt.NDArray[np.float32], margin: npt.NDArray[np.float32], rank: npt.NDArray[np.int32]
) -> PackedArray:
    """Confidence and outcome of each token, packed.

    Args:
        logprob, margin, rank: as in `RowStats`, finite, shape (tokens,).
    """
    right = rank <= 1
    own = logprob.astype(np.float64)
    # Rounding of float32 can lift the sum a hair above 0.
    highest = np.minimum(np.where(right, own, own - margin), 0.0)
    fixed = np.rint(np.exp(highest) * 2.0**FRACTION_BITS).astype(np.uint32)
    packed: PackedArray = (fixed << np.uint32(1)) | right.astype(np.uint32)
    return packed


def to_text(packed: PackedArray) -> str:
    """As text for a record."""
    return base64.b64encode(packed.astype(_STORED).tobytes()).decode()


def from_text(text: str) -> PackedArray:
    """What `to_text` wrote.

    Raises:
        ValueError: it didn't.
    """
    return np.frombuffer(base64.b64decode(text, validate=True), dtype=_STORED).astype(np.uint32)


def confidences(packed: PackedArray) -> "FloatArray":
    """The largest probability of each token, float64."""
    return (packed >> np.uint32(1)) * UNIT


def outcomes(packed: PackedArray) -> "FloatArray":
    """1 for a token whose probability was the largest, else 0; float64."""
    return (packed & np.uint32(1)).astype(np.float64)
