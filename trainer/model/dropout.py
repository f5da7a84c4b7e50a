"""Dropout whose masks are known from the seed and the step alone, so that a resumed run draws the same ones."""

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn


@ms.jit_class
class _Mask:
    """What the activations are multiplied with; a class of its own, so that no model counts it as a weight."""

    def __init__(self, name: str, shape: tuple[int, int]) -> None:
        self.value = Parameter(Tensor(np.zeros(shape, np.float32)), name=name, requires_grad=False)


class Dropout(nn.Cell):  # type: ignore[misc]
    """Each activation is zero with probability p while training, and divided by 1 - p else.

    `nn.Dropout` on CPU keeps the state of its generator inside the kernel, where nothing can save or restore it.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.mask: _Mask | None = None

    def construct(self, x: Tensor) -> Tensor:
        """x [N, size] → [N, size]."""
        if not self.training or self.p == 0:
            return x
        if self.mask is None:
            raise RuntimeError("a model with dropout trains with DropoutMasks only")
        return x * self.mask.value


class DropoutMasks:
    """Draws the masks of all dropout layers of a model before each pass."""

    def __init__(self, model: nn.Cell, shape: tuple[int, int]) -> None:
        """`shape` is that of the activations: rows of all texts together, and their size."""
        self._shape = shape
        self._layers = [
            cell for _, cell in model.cells_and_names() if isinstance(cell, Dropout) and cell.p > 0
        ]
        for number, layer in enumerate(self._layers):
            layer.mask = _Mask(f"dropout_mask.{number}", shape)

    def draw(self, key: Sequence[int]) -> None:
        """Masks that `key` (seed, step, ...) alone decides."""
        if not self._layers:
            return
        generator = np.random.default_rng(list(key))
        for layer in self._layers:
            kept = generator.random(self._shape, dtype=np.float32) >= layer.p
            assert layer.mask is not None  # the constructor set it
            layer.mask.value.set_data(Tensor(kept.astype(np.float32) / np.float32(1 - layer.p)))
