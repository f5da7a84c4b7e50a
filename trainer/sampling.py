"""Choosing the next token from logits."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Sampling:
    """How to choose: temperature 0 takes the most likely token; otherwise draw from the `top_k` most likely ones,
    cut to the smallest set whose probability reaches `top_p` (Holtzman et al. 2020).
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0


def choose(logits: npt.NDArray[np.float32], sampling: Sampling, generator: np.random.Generator) -> int:
    """The next token id, from logits of shape (vocab,). Equal logits: the smallest id comes first."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    order = np.argsort(-logits, kind="stable")[: sampling.top_k]
    scaled = logits[order].astype(np.float64) / sampling.temperature
    weights = np.exp(scaled - scaled[0])
    probabilities = weights / weights.sum()
    # Keep tokens until the ones before have reached top_p: always the first, and the one that crosses the line.
    before = np.cumsum(probabilities) - probabilities
    kept = probabilities * (before < sampling.top_p)
    return int(generator.choice(order, p=kept / kept.sum()))
