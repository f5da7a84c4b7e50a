"""Normalisation layers, written out so that they run on CPU and export to every format."""

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from evalkit.bundle import ModelSpec


class PlainNormalise(nn.Cell):  # type: ignore[misc]
    """y = x / sqrt(mean(x²) + eps) over the last axis, its derivative left to MindSpore."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.square, self.mean = ops.Square(), ops.ReduceMean(keep_dims=True)
        self.add_eps, self.rsqrt, self.multiply = ops.Add(), ops.Rsqrt(), ops.Mul()

    def construct(self, x: Tensor) -> Tensor:
        """x [N, size] → [N, size]."""
        return self.multiply(x, self.rsqrt(self.add_eps(self.mean(self.square(x), -1), self.eps)))


class _Normalise(nn.Cell):  # type: ignore[misc]
    """y = x / sqrt(mean(x²) + eps) over the last axis, with its derivative written out.

    `ops.rms_norm` has no CPU kernel, and 1/sqrt is used instead of rsqrt because the ONNX exporter knows no Rsqrt. It
    knows no Reciprocal either, which MindSpore makes of 1.0 / x: hence the division of a tensor. The derivative by hand
    is a third of the work of the one that MindSpore derives.
    """

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.mean = ops.ReduceMean(keep_dims=True)
        self.one = ms.Tensor([1.0], ms.float32)
        self.divide = ops.RealDiv()

    def plain(self) -> PlainNormalise:
        """The same without a derivative of its own."""
        return PlainNormalise(self.eps)

    def construct(self, x: Tensor) -> Tensor:
        """x [N, size] → [N, size]."""
        return x * self.divide(self.one, ops.sqrt(self.mean(x * x, -1) + self.eps))

    def bprop(self, x: Tensor, y: Tensor, dy: Tensor) -> tuple[Tensor]:
        """dx = (dy - y · mean(y · dy)) / sqrt(mean(x²) + eps)."""
        scale = 1.0 / ops.sqrt(self.mean(x * x, -1) + self.eps)  # [N, 1]
        return ((dy - y * self.mean(y * dy, -1)) * scale,)


class RMSNorm(nn.Cell):  # type: ignore[misc]
    """y = x / sqrt(mean(x²) + eps) · weight, over the last axis (Zhang & Sennrich 2019)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = Parameter(ms.Tensor([1.0] * size, ms.float32), name="weight")
        self.normalise = _Normalise(eps)
        self.multiply = ops.Mul()

    def construct(self, x: Tensor) -> Tensor:
        """x [N, size] → [N, size]."""
        return self.multiply(self.normalise(x), self.weight)


class LayerNorm(nn.Cell):  # type: ignore[misc]
    """y = (x - mean) / sqrt(variance + eps) · weight + bias, over the last axis (Ba et al. 2016).

    `nn.LayerNorm` has another default epsilon (1e-7) and other parameter names than Hugging Face models.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = Parameter(ms.Tensor([1.0] * size, ms.float32), name="weight")
        self.bias = Parameter(ms.Tensor([0.0] * size, ms.float32), name="bias")
        self.normalise = ops.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1, epsilon=eps)

    def construct(self, x: Tensor) -> Tensor:
        """x [N, size] → [N, size]."""
        return self.normalise(x, self.weight, self.bias)[0]


def norm(spec: ModelSpec) -> nn.Cell:
    """The normalisation layer that `spec` asks for."""
    kind = RMSNorm if spec.norm == "rmsnorm" else LayerNorm
    return kind(spec.hidden_size, spec.norm_eps)
