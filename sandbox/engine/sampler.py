"""Choosing the next token from logits: greedy, or drawn with the turn's own seeded generator."""

import numpy as np
import numpy.typing as npt

from sandbox.domain import Sampling


class Sampler:
    """Chooses the tokens of one turn; equal logits, settings and seed give equal tokens, whatever runs beside it."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._random = np.random.Generator(np.random.PCG64(sampling.seed))

    def choose(self, logits: npt.NDArray[np.float32]) -> int:
        """Id of the next token, from float32 logits of shape (vocabulary,); of equal logits the lowest id wins."""
        if self._sampling.temperature == 0:
            return int(logits.argmax())
        order = np.argsort(-logits, kind="stable")
        if 0 < self._sampling.top_k < order.size:
            order = order[: self._sampling.top_k]
        scaled = logits[order].astype(np.float64)
        scaled -= scaled[0]
        # A tiny temperature sends all but the best to -inf, which is what it means.
        with np.errstate(over="ignore"):
            scaled /= self._sampling.temperature
        mass = np.cumsum(np.exp(scaled))
        # The smallest set of tokens whose probability reaches top_p; the token that reaches it belongs to it.
        kept = int(np.searchsorted(mass, self._sampling.top_p * mass[-1])) + 1
        mass = mass[: min(kept, mass.size)]
        drawn = int(np.searchsorted(mass, self._random.random() * mass[-1], side="right"))
        return int(order[min(drawn, mass.size - 1)])
