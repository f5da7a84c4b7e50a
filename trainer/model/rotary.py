"""Rotary position embedding, half-split as in Hugging Face code (Su et al. 2021)."""

import numpy as np
from mindspore import Tensor, nn, ops


class Rotary(nn.Cell):  # type: ignore[misc]
    """Rotates queries and keys by angles that grow with the position.

    Channel i of the first half pairs with channel i of the second half and turns by position · theta^(-2i/head_size).
    llama2.c and GGUF pair neighbours instead: their rows must be reordered before they fit here.
    """

    def __init__(self, head_size: int, max_length: int, theta: float) -> None:
        super().__init__()
        frequency = theta ** (-np.arange(0, head_size, 2, dtype=np.float64) / head_size)  # [head_size / 2]
        angle = np.outer(np.arange(max_length, dtype=np.float64), frequency)  # [max_length, head_size / 2]
        self.cosines = Tensor(
            np.concatenate([np.cos(angle)] * 2, -1).astype(np.float32)
        )  # [max_length, head_size]
        # The rotated half carries its sign here, so that turning is one product and one sum.
        self.sines = Tensor(np.concatenate([-np.sin(angle), np.sin(angle)], -1).astype(np.float32))
        self.half = head_size // 2

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [B, S] → cosines and sines, each [B, 1, S, head_size]. Padding (-1) reads position 0."""
        rows = ops.maximum(positions, 0)
        return ops.gather(self.cosines, rows, 0).expand_dims(1), ops.gather(self.sines, rows, 0).expand_dims(
            1
        )

    def construct(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """x [B, heads, S, head_size] → the same shape, turned by `angles`."""
        cosines, sines = angles
        swapped = ops.concat((x[..., self.half :], x[..., : self.half]), -1)
        return x * cosines + swapped * sines
