"""Weights into and out of a model: seeded start values, safetensors files."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from mindspore import Tensor, nn
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from evalkit.errors import InputError

_DEVIATION = 0.02

Weights = dict[str, npt.NDArray[np.float32]]


def initialise(model: nn.Cell, layers: int, seed: int) -> None:
    """Draw start values as GPT-2 does: matrices from N(0, 0.02), those that end a residual branch from
    N(0, 0.02 / sqrt(2 · layers)); biases 0 and norm weights 1 stay as they are. Equal seeds give equal values.
    """
    generator = np.random.default_rng(seed)
    for parameter in model.get_parameters():
        if parameter.ndim < 2:
            continue
        ends_branch = parameter.name.endswith(("o_proj.weight", "down_proj.weight"))
        deviation = _DEVIATION / np.sqrt(2 * layers) if ends_branch else _DEVIATION
        values = generator.normal(0.0, deviation, parameter.shape).astype(np.float32)
        parameter.set_data(Tensor(values))


def weights_of(model: nn.Cell) -> Weights:
    """Copies of all parameters by name."""
    return {parameter.name: parameter.asnumpy().copy() for parameter in model.get_parameters()}


def weights_bytes(weights: Weights) -> bytes:
    """A safetensors file; equal weights give equal bytes."""
    return bytes(save({name: weights[name] for name in sorted(weights)}, metadata={"format": "ms"}))


def load_weights(model: nn.Cell, path: Path) -> None:
    """Fill every parameter of `model` from the safetensors file at `path`.

    Raises:
        InputError: not a safetensors file, or names, shapes or types that don't fit the model.
    """
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a safetensors file ({error}); take another checkpoint") from None
    parameters = {parameter.name: parameter for parameter in model.get_parameters()}
    if missing := sorted(set(parameters) - set(weights)):
        raise InputError(f"{path}: {missing[0]}: missing; the weights belong to another architecture")
    if surplus := sorted(set(weights) - set(parameters)):
        raise InputError(f"{path}: {surplus[0]}: unknown to the model; the weights belong to another architecture")
    for name, parameter in parameters.items():
        value = weights[name]
        if value.shape != tuple(parameter.shape) or value.dtype != np.float32:
            raise InputError(
                f"{path}: {name}: {value.dtype} {value.shape}, the model needs float32 {tuple(parameter.shape)}"
            )
        parameter.set_data(Tensor(value))
