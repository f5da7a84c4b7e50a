"""Debug mode: every layer's output is looked at while a step runs operation by operation."""

from typing import Any

import numpy as np
from mindspore import Tensor, nn

from evalkit.errors import InputError
from trainer.run_log import JsonLines


class LayerWatch:
    """Names the first layer whose output isn't finite, and writes down the shapes of the first step.

    Hooks see outputs in PyNative mode only.
    """

    def __init__(self, model: nn.Cell, shapes: JsonLines | None) -> None:
        """`shapes` gets one record a layer; None: nothing is written."""
        self._step = 0
        self._shapes = shapes
        for name, cell in model.cells_and_names():
            # Cells with a derivative of their own take no hooks.
            if name and not cell.has_bprop:
                cell.register_forward_hook(self._hook(name))

    def begin(self, step: int) -> None:
        """Called before each step."""
        self._step = step

    def _hook(self, name: str) -> Any:
        def look(cell: nn.Cell, inputs: Any, output: Any) -> None:
            outputs = _tensors(output)
            if self._step == 1 and self._shapes is not None:
                self._shapes.write(
                    {
                        "step": 1,
                        "cell": name,
                        "type": type(cell).__name__,
                        "input": [_shape(value) for value in _tensors(inputs)],
                        "output": [_shape(value) for value in outputs],
                    }
                )
            for value in outputs:
                if value.dtype.is_floating_point and not np.isfinite(value.asnumpy()).all():
                    raise InputError(
                        f"step {self._step}: {name} gave a value that isn't finite (output {_shape(value)}, input "
                        f"{', '.join(_shape(given) for given in _tensors(inputs))}); look at its weights and its input"
                    )

        return look


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [item for part in value for item in _tensors(part)] if isinstance(value, tuple | list) else []


def _shape(value: Tensor) -> str:
    return f"{str(value.dtype).lower()} {list(value.shape)}"
