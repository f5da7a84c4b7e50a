"""Rotary position embedding, half-split as in Hugging Face code (Su et al. 2021)."""

import numpy as np
import numpy.typing as npt
from mindspore import Tensor, nn, ops

Floats = npt.NDArray[np.float32]


def rotary_angles(head_size: int, max_length: int, theta: float) -> tuple[Floats, Floats]:
    """Cosines and sines of position · theta^(-2i / head_size), each [max_length, head_size / 2]."""
    frequency = theta ** (-np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    angle = np.outer(np.arange(max_length, dtype=np.float64), frequency)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


class PlainRotary(nn.Cell):  # type: ignore[misc]
    """Turns queries and keys by angles that grow with the position.

    Channel i of the first half pairs with channel i of the second half and turns by the angle
    position · theta^(-2i / head_size). llama2.c and GGUF pair neighbours instead: their rows must be reordered before
    they fit here.
    """

    def __init__(self, head_size: int, max_length: int, theta: float) -> None:
        super().__init__()
        cosines, sines = rotary_angles(head_size, max_length, theta)
        # The sign of the rotated half lies in the table, so that turning is two products and one sum.
        self.cosines = Tensor(np.concatenate([cosines, cosines], -1))  # [max_length, head_size]
        self.sines = Tensor(np.concatenate([-sines, sines], -1))  # [max_length, head_size]
        self.multiply, self.add = ops.Mul(), ops.Add()
        self.split, self.concat = ops.Split(-1, 2), ops.Concat(-1)

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [B, S] → cosines and sines, each [B, 1, S, head_size]. Padding (-1) reads position 0."""
        rows = ops.maximum(positions, 0)
        cosines, sines = ops.gather(self.cosines, rows, 0), ops.gather(self.sines, rows, 0)
        return cosines.expand_dims(1), sines.expand_dims(1)

    def construct(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """x [B, heads, S, head_size] → the same shape, turned."""
        first, second = self.split(x)
        swapped = self.concat((second, first))
        return self.add(self.multiply(x, cosines), self.multiply(swapped, sines))


class Rotary(PlainRotary):
    """The same with its derivative written out, and halves taken by slices."""

    def __init__(self, head_size: int, max_length: int, theta: float) -> None:
        super().__init__(head_size, max_length, theta)
        self.sizes = (head_size, max_length, theta)
        self.half = head_size // 2

    def plain(self) -> PlainRotary:
        """The same without a derivative of its own."""
        return PlainRotary(*self.sizes)

    def construct(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """As the plain one."""
        return x * cosines + self._swap(x) * sines

    def bprop(
        self, x: Tensor, cosines: Tensor, sines: Tensor, y: Tensor, dy: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Turn back: the derivative that MindSpore derives pads and adds each half instead. Angles aren't learned."""
        dx = dy * cosines + self._swap(dy * sines)
        return dx.astype(x.dtype), ops.zeros_like(cosines), ops.zeros_like(sines)

    def _swap(self, x: Tensor) -> Tensor:
        return ops.concat((x[..., self.half :], x[..., : self.half]), -1)
