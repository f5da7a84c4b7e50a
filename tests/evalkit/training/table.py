"""A bigram model without MindSpore."""

import numpy as np

from evalkit.backends.base import RowStats


class TableBackend:
    """ln p(next | token) from a table; `leak` lets what stands beside a text move its scores."""

    name, precision = "table", "fp32"

    def __init__(self, vocab_size: int, max_length: int, *, leak: float = 0.0, seed: int = 0) -> None:
        self.vocab_size, self.max_length, self.leak = vocab_size, max_length, leak
        self.model_digest = f"{seed:064d}"
        self.calls = 0
        table = np.random.default_rng(seed).normal(size=(vocab_size, vocab_size))
        self.table = (table - np.log(np.exp(table).sum(-1, keepdims=True))).astype(np.float32)

    def score(self, token_ids, targets, positions, segments):
        self.calls += 1
        # A position's bits depend on where it stands in the batch, as in real arithmetic.
        noise = np.arange(token_ids.size, dtype=np.float32).reshape(token_ids.shape) * np.float32(1e-6)
        logprob = self.table[token_ids, targets] - noise
        logprob -= np.float32(self.leak) * (segments.max(1, keepdims=True) > 1)
        zeros = np.zeros_like(logprob)
        return RowStats(logprob, zeros, zeros, np.ones_like(token_ids), token_ids)
