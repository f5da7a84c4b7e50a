"""A training as MindSpore's tutorials write it: nothing of this project in it."""

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops


class SeededDropout(nn.Cell):
    """Dropout by a uniform draw. `nn.Dropout` on a CPU may drop other values in each process, seeds or not: in PyNative mode
    nearly always, in graph mode on a busy machine.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def construct(self, x):
        if not self.training or self.p == 0:
            return x
        return x * (ops.rand(*x.shape) >= self.p).astype(x.dtype) / (1 - self.p)


class TutorialLM(nn.Cell):
    """A causal language model of one attention layer; token ids (rows, length) to logits (rows, length, vocabulary)."""

    def __init__(self, vocab_size: int, dropout: nn.Cell, hidden: int = 32, longest: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, hidden)
        self.place = nn.Embedding(longest, hidden)
        self.query, self.key, self.value = (nn.Dense(hidden, hidden) for _ in range(3))
        self.norm = nn.LayerNorm((hidden,))
        self.dropout = dropout
        self.head = nn.Dense(hidden, vocab_size)
        self.scale = hidden**-0.5
        self.mask = ms.Tensor(np.triu(np.full((longest, longest), -1e4, np.float32), 1))
        self.places = ms.Tensor(np.arange(longest, dtype=np.int32))

    def construct(self, token_ids):
        length = token_ids.shape[1]
        x = self.embedding(token_ids) + self.place(self.places[:length])
        scores = (
            ops.matmul(self.query(x), self.key(x).swapaxes(1, 2)) * self.scale + self.mask[:length, :length]
        )
        mixed = ops.matmul(ops.softmax(scores, -1), self.value(x))
        return self.head(self.norm(x + self.dropout(mixed)))


class LossCell(nn.Cell):
    """The network with its loss, as `Model` wants it where the loss is in the network."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__()
        self.network = network

    def construct(self, token_ids, labels):
        logits = self.network(token_ids)
        return ops.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


class LossScaleStep(nn.TrainOneStepWithLossScaleCell):
    """MindSpore's step with a dynamic loss scale; its overflow check has no CPU kernel, so that is written here."""

    def get_overflow_status(self, status, compute_output):
        finite = ops.isfinite(compute_output[0]).all()
        for gradient in compute_output[1:]:
            finite = ops.logical_and(finite, ops.isfinite(gradient).all())
        return ops.logical_not(finite)


def dataset(rows: np.ndarray, batch_size: int = 4) -> ds.Dataset:
    """Shuffled batches of (token_ids, labels)."""
    data = ds.NumpySlicesDataset({"token_ids": rows[:, :-1], "labels": rows[:, 1:]}, shuffle=True)
    return data.batch(batch_size, drop_remainder=True)
