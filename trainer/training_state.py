"""Everything that decides how a training run goes on, as bytes and back: optimizer, loss scale, random numbers."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import numpy.typing as npt
from mindspore import Tensor
from safetensors import SafetensorError
from safetensors.numpy import load_file

from evalkit.errors import InputError
from trainer.model.weights import Weights, weights_bytes, with_padding, without_padding
from trainer.step import TrainStep

_PYTHON, _NUMPY, _MINDSPORE = "random.python", "random.numpy", "random.mindspore"


@dataclass(frozen=True)
class RandomState:
    """Of Python's, numpy's and MindSpore's global generators, which callbacks may draw from.

    Training itself draws nothing from them: data order and dropout come from seed and step alone.
    """

    arrays: dict[str, npt.NDArray[Any]]
    scalars: dict[str, float | None]


def random_state() -> RandomState:
    """As it is now."""
    version, words, gauss = random.getstate()
    numpy_state = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)  # what `legacy=False` asks for
    return RandomState(
        {
            _PYTHON: np.array(words, dtype=np.uint32),
            _NUMPY: np.asarray(numpy_state["state"]["key"], dtype=np.uint32),
            _MINDSPORE: ms.get_rng_state().asnumpy().copy(),
        },
        {
            "python_version": version,
            "python_gauss": gauss,
            "numpy_position": int(numpy_state["state"]["pos"]),
            "numpy_has_gauss": int(numpy_state["has_gauss"]),
            "numpy_gauss": float(numpy_state["gauss"]),
        },
    )


def restore_random_state(state: RandomState) -> None:
    """Make the generators go on from `state`."""
    scalars = state.scalars
    words = tuple(int(word) for word in state.arrays[_PYTHON])
    random.setstate((int(scalars["python_version"] or 0), words, scalars["python_gauss"]))
    np.random.set_state(
        (
            "MT19937",
            state.arrays[_NUMPY],
            int(scalars["numpy_position"] or 0),
            int(scalars["numpy_has_gauss"] or 0),
            float(scalars["numpy_gauss"] or 0.0),
        )
    )
    ms.set_rng_state(Tensor(state.arrays[_MINDSPORE]))


def state_bytes(step: TrainStep, generators: RandomState) -> bytes:
    """A safetensors file with the optimizer's moments, without padding, and the generators' states."""
    moments = {
        parameter.name: parameter.asnumpy() for parameter in (*step.optimizer.first, *step.optimizer.second)
    }
    return weights_bytes(without_padding(moments, step.network.vocab_size) | generators.arrays)


def restore_state(step: TrainStep, path: Path, scalars: dict[str, float | None]) -> None:
    """Fill the optimizer's moments and the generators from the state file at `path`.

    Raises:
        InputError: not such a file, or its tensors don't fit.
    """
    try:
        tensors: Weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a safetensors file ({error}); take another checkpoint") from None
    wanted = {parameter.name: parameter for parameter in (*step.optimizer.first, *step.optimizer.second)}
    names = {*wanted, _PYTHON, _NUMPY, _MINDSPORE}
    if strange := sorted(names ^ set(tensors)):
        raise InputError(f"{path}: {strange[0]}: missing or unknown; the state belongs to another training")
    vocab_size = step.network.vocab_size
    for name, parameter in wanted.items():
        value = tensors[name]
        expected = without_padding({name: parameter.asnumpy()}, vocab_size)[name]
        if value.shape != expected.shape or value.dtype != expected.dtype:
            raise InputError(f"{path}: {name}: {value.dtype} {value.shape}, {expected.shape} is needed")
        parameter.set_data(Tensor(with_padding(value, parameter.shape)))
    arrays = {name: tensors[name] for name in (_PYTHON, _NUMPY, _MINDSPORE)}
    restore_random_state(RandomState(arrays, scalars))
