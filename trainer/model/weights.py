"""Weights into and out of a model: seeded start values, safetensors files."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from mindspore import Tensor, nn
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from evalkit.bundle import ModelSpec
from evalkit.errors import InputError
from trainer.model.decoder import CausalLM

# GPT-2's deviation, and the width that it was chosen for: a narrower layer sums fewer terms and needs larger ones.
_DEVIATION, _WIDTH = 0.02, 768

Weights = dict[str, npt.NDArray[np.float32]]

VOCABULARY_TABLES = ("model.embed_tokens.weight", "lm_head.weight")


def initialise(model: nn.Cell, spec: ModelSpec, seed: int) -> None:
    """Draw start values as GPT-2 does; equal seeds give equal values.

    Matrices come from N(0, d), those that end a residual branch from N(0, d / sqrt(2 · layers)), with
    d = 0.02 · sqrt(768 / hidden_size); biases 0 and norm weights 1 stay as they are.
    """
    generator = np.random.default_rng(seed)
    deviation = _DEVIATION * math.sqrt(_WIDTH / spec.hidden_size)
    for parameter in model.get_parameters():
        if parameter.ndim < 2:
            continue
        ends_branch = parameter.name.endswith(("o_proj.weight", "down_proj.weight"))
        scale = deviation / math.sqrt(2 * spec.layers) if ends_branch else deviation
        rows = spec.vocab_size if parameter.name in VOCABULARY_TABLES else parameter.shape[0]
        values = generator.normal(0.0, scale, (rows, *parameter.shape[1:])).astype(np.float32)
        parameter.set_data(Tensor(with_padding(values, parameter.shape)))


def weights_of(model: nn.Cell) -> Weights:
    """Copies of all parameters by name."""
    return {parameter.name: parameter.asnumpy().copy() for parameter in model.get_parameters()}


def with_padding(values: npt.NDArray[np.float32], shape: Sequence[int]) -> npt.NDArray[np.float32]:
    """A vocabulary table filled up with zero rows to `shape`; anything else as it is."""
    return np.pad(values, [(0, shape[0] - len(values)), *[(0, 0)] * (values.ndim - 1)])


def without_padding(weights: Weights, vocab_size: int) -> Weights:
    """The vocabulary's tables cut to the words that there are; their names end in that of a table."""
    return {
        name: value[:vocab_size] if name.endswith(VOCABULARY_TABLES) else value
        for name, value in weights.items()
    }


def weights_bytes(weights: Weights) -> bytes:
    """A safetensors file; equal weights give equal bytes."""
    return bytes(save({name: weights[name] for name in sorted(weights)}, metadata={"format": "ms"}))


def load_weights(model: CausalLM, path: Path) -> None:
    """Fill every parameter of `model` from the safetensors file at `path`, which holds no padding.

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
        raise InputError(
            f"{path}: {surplus[0]}: unknown to the model; the weights belong to another architecture"
        )
    for name, parameter in parameters.items():
        value, shape = weights[name], tuple(parameter.shape)
        needed = (model.vocab_size, *shape[1:]) if name in VOCABULARY_TABLES else shape
        if value.shape != needed or value.dtype != np.float32:
            raise InputError(f"{path}: {name}: {value.dtype} {value.shape}, the model needs float32 {needed}")
        parameter.set_data(Tensor(with_padding(value, shape)))
