"""A second implementation of the Backend protocol in plain numpy, with real left context, for tests."""

import hashlib

import numpy as np

from evalkit.backends.base import RowStats


class ContextBackend:
    """A small model whose next-token distribution depends on every token before, its position and nothing
    else.

    The hidden state after a token is a decaying sum over the tokens of its own segment; logits are a linear
    map.
    """

    name = "numpy"
    precision = "fp32"

    def __init__(self, vocab_size: int, max_length: int, seed: int = 0, dtype: type = np.float64) -> None:
        generator = np.random.default_rng(seed)
        self.vocab_size = vocab_size
        self.max_length = max_length
        self.dtype = dtype
        self.embedding = generator.normal(0, 1.0, (vocab_size, 12))
        self.head = generator.normal(0, 0.7, (12, vocab_size))
        self.model_digest = hashlib.sha256(self.embedding.tobytes() + self.head.tobytes()).hexdigest()
        self.calls: list[tuple[int, int]] = []

    def score(self, token_ids, targets, positions, segments):
        assert all(array.dtype == np.int32 for array in (token_ids, targets, positions, segments))
        self.calls.append(token_ids.shape)
        logprob, entropy, margin = (np.full(token_ids.shape, np.nan, dtype=np.float32) for _ in range(3))
        rank, top_id = (np.zeros(token_ids.shape, dtype=np.int32) for _ in range(2))
        for row in range(len(token_ids)):
            for segment in set(segments[row]) - {0}:
                (columns,) = np.nonzero(segments[row] == segment)
                assert list(positions[row, columns]) == list(range(len(columns)))
                logprobs = self.logprobs(token_ids[row, columns])
                asked = targets[row, columns]
                own = np.take_along_axis(logprobs, asked[:, None].astype(np.int64), 1)[:, 0]
                others = logprobs.copy()
                np.put_along_axis(others, asked[:, None].astype(np.int64), -np.inf, 1)
                logprob[row, columns] = own
                entropy[row, columns] = -(np.exp(logprobs) * logprobs).sum(1)
                margin[row, columns] = own - others.max(1)
                rank[row, columns] = 1 + (logprobs > own[:, None]).sum(1)
                top_id[row, columns] = logprobs.argmax(1)
        return RowStats(logprob, entropy, margin, rank, top_id)

    def logprobs(self, ids):
        """Log-softmax after each token of one sequence, float64, shape (tokens, vocabulary)."""
        state = np.zeros(12)
        states = []
        for position, token in enumerate(ids):
            state = 0.9 * state + self.embedding[token] * np.cos(0.1 * position)
            states.append(state)
        logits = (np.array(states).reshape(len(ids), 12) @ self.head).astype(self.dtype)
        shifted = logits - logits.max(axis=1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
