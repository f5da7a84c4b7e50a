"""The loss scale of a running training, from every form that MindSpore has.

What the step returns costs nothing beyond its own transfer. Where the step doesn't return it, the parameter that
holds the scale is read from the device at every `every`-th step only, so that a fall may be seen that much later.
"""

from dataclasses import dataclass
from typing import Any

from evalkit.checks import shown, whole
from evalkit.errors import InputError
from evalkit.training.arguments import argument

_RETURNED_FROM = 3  # (loss, overflow, scale), and more behind them in some trainers


@dataclass(frozen=True)
class LossScaleReading:
    """One look at the loss scale.

    Attributes:
        value: after the step; None where this step wasn't read, or there is no scale.
        overflow: whether the step was skipped; None where that isn't known.
    """

    value: float | None
    overflow: bool | None


class LossScaleReader:
    """Reads the loss scale of one training.

    Attributes:
        source: where it comes from: step_outputs, manager, parameter, or None where there is none.
        lag_steps: how many steps late a change may be seen.
    """

    def __init__(self, scaler: Any = None, *, every: int = 10) -> None:
        """Prepare.

        Args:
            scaler: a `mindspore.amp.DynamicLossScaler`, or whatever holds `scale_value`, where the training
                network doesn't lead to it.
            every: steps between two reads of a parameter.

        Raises:
            InputError: the scaler holds no scale, or `every` isn't a positive whole number.
        """
        if scaler is not None and _number(_held(scaler)) is None:
            raise InputError(
                f"loss_scaler: a mindspore.amp.DynamicLossScaler, what holds scale_value, or the parameter itself is needed "
                f"(got {shown(scaler)})"
            )
        self._scaler, self._every = scaler, whole("loss_scale_every", every, least=1)
        self.source: str | None = None
        self.lag_steps = 0

    def at_start(self, parameters: Any) -> float | None:
        """The scale before the first step; a drop in that step shows only against it."""
        holder = self._holder(parameters)
        manager = _manager(parameters)
        if manager is not None:
            return _number(manager.get_loss_scale())
        return None if holder is None else _number(holder)

    def read(self, parameters: Any, step: int) -> LossScaleReading:
        """The scale after `step`; `parameters` is what `RunContext.original_args()` gives."""
        outputs = argument(parameters, "net_outputs")
        if isinstance(outputs, tuple | list) and len(outputs) >= _RETURNED_FROM:
            overflow, scale = _flag(outputs[1]), _number(outputs[2])
            if overflow is not None and scale is not None:
                self.source, self.lag_steps = "step_outputs", 0
                return LossScaleReading(scale, overflow)
        manager = _manager(parameters)
        # In sink mode the manager on the host is never told of an overflow.
        if manager is not None and not argument(parameters, "dataset_sink_mode", False):
            self.source, self.lag_steps = "manager", 0
            return LossScaleReading(_number(manager.get_loss_scale()), None)
        holder = self._holder(parameters)
        if holder is None:
            return LossScaleReading(None, None)
        self.source, self.lag_steps = "parameter", self._every - 1
        return LossScaleReading(_number(holder) if step % self._every == 0 else None, None)

    def _holder(self, parameters: Any) -> Any:
        """The tensor or parameter that holds the scale."""
        if self._scaler is not None:
            return _held(self._scaler)
        network = argument(parameters, "train_network")
        for owner in (network, getattr(network, "network", None)):
            sense = getattr(owner, "scale_sense", None)
            if sense is not None:
                return getattr(sense, "loss_scale_value", sense) if callable(sense) else sense
            for name in ("loss_scaler", "scaler"):
                found = getattr(getattr(owner, name, None), "scale_value", None)
                if found is not None:
                    return found
        return None


def _held(scaler: Any) -> Any:
    return getattr(scaler, "scale_value", scaler)


def _manager(parameters: Any) -> Any:
    # MindSpore's own name for it is misspelt; a later release may mend that.
    for name in ("loss_scale_mananger", "loss_scale_manager"):
        manager = argument(parameters, name)
        if manager is not None and hasattr(manager, "get_loss_scale"):
            return manager
    return None


def _number(value: Any) -> float | None:
    """A scalar as a Python number at once: a kept tensor would hold device memory, a kept Parameter would change."""
    if hasattr(value, "asnumpy"):
        value = value.asnumpy()
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _flag(value: Any) -> bool | None:
    if hasattr(value, "asnumpy"):
        value = value.asnumpy()
    if getattr(value, "size", 1) < 1:
        return None
    if hasattr(value, "any"):
        return bool(value.any())
    return bool(value) if isinstance(value, bool | int | float) else None


def loss_of(outputs: Any) -> float | None:
    """The loss among the outputs of a training step: their first part, as a mean over its elements; None without."""
    if isinstance(outputs, tuple | list):
        outputs = outputs[0] if outputs else None
    if hasattr(outputs, "asnumpy"):
        outputs = outputs.asnumpy()
    if hasattr(outputs, "mean"):
        return float(outputs.mean()) if outputs.size else None
    return _number(outputs)
