"""Dynamic loss scaling: gradients too large for their type skip a step instead of spoiling the weights."""

from mindspore import Tensor, amp, dtype, nn, ops

from trainer.configuration.precision import LossScaleConfig


class LossScale:
    """`amp.DynamicLossScaler`, the one that exists on CPU, within bounds and with its value on the host.

    After an overflow the scale is divided by `factor`; after `window` steps without one it is multiplied by it.

    Attributes:
        scaler: MindSpore's own; its Parameters `scale_value` and `counter` are the truth.
        value: of the scale.
    """

    def __init__(self, config: LossScaleConfig) -> None:
        self.scaler = amp.DynamicLossScaler(config.initial, config.factor, config.window)
        self.value = config.initial
        self._bounds = config.min, config.max
        self._adjust = _AdjustCell(self.scaler)

    @property
    def counter(self) -> int:
        """Steps without an overflow since the scale last moved."""
        return int(self.scaler.counter.asnumpy())

    @property
    def at_minimum(self) -> bool:
        """Whether the scale can't fall any further."""
        return self.value <= self._bounds[0]

    def scale(self, loss: Tensor) -> Tensor:
        """The loss to differentiate (inside a graph)."""
        return self.scaler.scale(loss)

    def adjust(self, finite: bool) -> None:
        """Move the scale after a step."""
        moved = float(self._adjust(Tensor(finite)).asnumpy())
        self.value = min(max(moved, self._bounds[0]), self._bounds[1])
        if self.value != moved:
            self.scaler.scale_value.set_data(Tensor(self.value, dtype.float32))

    def restore(self, value: float, counter: int) -> None:
        """Go on from the state that another run was in."""
        self.value = value
        self.scaler.scale_value.set_data(Tensor(value, dtype.float32))
        self.scaler.counter.set_data(Tensor(counter, dtype.int32))


class _AdjustCell(nn.Cell):  # type: ignore[misc]
    """Moves the scale in place and returns the new one."""

    def __init__(self, scaler: amp.DynamicLossScaler) -> None:
        super().__init__(auto_prefix=False)
        self.scaler = scaler

    def construct(self, finite: Tensor) -> Tensor:
        self.scaler.adjust(finite)
        return self.scaler.scale_value + 0.0


class GlobalNorm(nn.Cell):  # type: ignore[misc]
    """Euclidean norm over all gradients together, a float32 scalar; not finite where one of them isn't."""

    def __init__(self) -> None:
        super().__init__()
        self.half_square = ops.L2Loss()  # Σ g² / 2

    def construct(self, *gradients: Tensor) -> Tensor:
        """Gradients of any shape → scalar."""
        halves: tuple[Tensor, ...] = ()
        for gradient in gradients:
            halves = (*halves, self.half_square(gradient))
        return ops.sqrt(2.0 * ops.addn(halves))
