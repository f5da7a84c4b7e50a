"""A small causal network in plain MindSpore, for benchmarks of what runs beside a training."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops


class CausalNetwork(nn.Cell):  # type: ignore[misc]
    """Token ids (rows, length) to logits (rows, length, vocabulary); two layers of attention and feed-forward."""

    def __init__(self, vocab_size: int, hidden: int, length: int, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, hidden)
        self.place = nn.Embedding(length, hidden)
        self.layers = nn.CellList([_Layer(hidden, length) for _ in range(layers)])
        self.norm = nn.LayerNorm((hidden,))
        self.head = nn.Dense(hidden, vocab_size)
        self.places = Tensor(np.arange(length, dtype=np.int32))

    def construct(self, token_ids: Tensor) -> Tensor:
        """See the class."""
        x = self.embedding(token_ids) + self.place(self.places[: token_ids.shape[1]])
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class _Layer(nn.Cell):  # type: ignore[misc]
    def __init__(self, hidden: int, length: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm((hidden,)), nn.LayerNorm((hidden,))
        self.query, self.key, self.value = (nn.Dense(hidden, hidden) for _ in range(3))
        self.up, self.down = nn.Dense(hidden, 4 * hidden), nn.Dense(4 * hidden, hidden)
        self.scale = hidden**-0.5
        self.mask = Tensor(np.triu(np.full((length, length), -1e4, np.float32), 1), ms.float32)

    def construct(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        y = self.first(x)
        scores = ops.matmul(self.query(y), self.key(y).swapaxes(1, 2)) * self.scale
        x = x + ops.matmul(ops.softmax(scores + self.mask[:length, :length], -1), self.value(y))
        return x + self.down(ops.gelu(self.up(self.second(x))))


class LossCell(nn.Cell):  # type: ignore[misc]
    """The network with its loss."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__()
        self.network = network

    def construct(self, token_ids: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy of labels (rows, length)."""
        logits = self.network(token_ids)
        return ops.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
