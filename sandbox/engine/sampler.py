"""Choosing the next token from logits: greedy, or drawn with the turn's own numbers."""

import numpy as np
import numpy.typing as npt

from sandbox.domain import Sampling

Floats = npt.NDArray[np.float32]

# The tokens that reach top_p are looked for among so many of the most probable ones first.
_FIRST_LOOK = 256


class Sampler:
    """Chooses the tokens of one turn.

    The random number of a token is a function of the turn's seed and the token's place in the reply (Philox, Salmon et al.
    2011), so it doesn't depend on what runs beside the turn or on what was drawn before.
    """

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling

    @property
    def greedy(self) -> bool:
        """Whether the best token is always taken."""
        return self._sampling.temperature == 0

    def choose(self, logits: Floats, place: int) -> int:
        """Id of the next token.

        Args:
            logits: float32 of shape (vocabulary,); of equal logits the lowest id counts as the better.
            place: number of the token in the reply, from 0.
        """
        if self.greedy:
            return int(logits.argmax())
        order, total = self._candidates(logits)
        mass = np.cumsum(self._weights(logits, order))
        if self._sampling.top_p < 1:
            mass = mass[: self._kept(mass, mass[-1] if total is None else total)]
        drawn = int(np.searchsorted(mass, self._uniform(place) * mass[-1], side="right"))
        return int(order[min(drawn, mass.size - 1)])

    def _candidates(self, logits: Floats) -> tuple[npt.NDArray[np.intp], float | None]:
        """Ids that may be drawn, the best first where top_p needs it, and the mass of all that top_p counts from.

        None stands for the mass of the ids returned.
        """
        top_k, top_p = self._sampling.top_k, self._sampling.top_p
        if 0 < top_k < logits.size:
            return _best(logits, top_k), None
        if top_p >= 1:
            return np.arange(logits.size), None
        if logits.size > _FIRST_LOOK:
            total = float(self._weights(logits, np.arange(logits.size)).sum())
            order = _best(logits, _FIRST_LOOK)
            if top_p * total <= self._weights(logits, order).sum():
                return order, total
        return _best(logits, logits.size), None

    def _kept(self, mass: npt.NDArray[np.float64], total: float) -> int:
        """Size of the smallest set whose probability reaches top_p; the token that reaches it belongs to it."""
        return min(int(np.searchsorted(mass, self._sampling.top_p * total)) + 1, mass.size)

    def _weights(self, logits: Floats, order: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
        scaled = logits[order].astype(np.float64)
        scaled -= float(logits.max())
        # A tiny temperature sends all but the best to -inf, which is what it means.
        with np.errstate(over="ignore"):
            scaled /= self._sampling.temperature
        return np.exp(scaled)

    def _uniform(self, place: int) -> float:
        bits = np.random.Philox(key=self._sampling.seed, counter=place)
        return float(np.random.Generator(bits).random())


def _best(logits: Floats, count: int) -> npt.NDArray[np.intp]:
    """Ids of the `count` largest logits, the largest first; of equals the lowest ids."""
    if count >= logits.size:
        return np.argsort(-logits, kind="stable")
    least = np.partition(logits, logits.size - count)[logits.size - count]
    above = np.flatnonzero(logits > least)
    ids = np.concatenate([above, np.flatnonzero(logits == least)[: count - above.size]])
    return ids[np.argsort(-logits[ids], kind="stable")]
