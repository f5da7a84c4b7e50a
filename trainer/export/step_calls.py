"""A step graph as a plain function of arrays, whatever runs it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evalkit.bundle import ModelSpec

Array = npt.NDArray[Any]
# token_ids, positions, past_positions, last_index and the cache in; logits and the new tokens' keys and values out.
# Shapes and types: `step_ports`.
Step = Callable[[Sequence[Array]], list[Array]]


def mindspore_step(graph: Any) -> Step:
    """A step cell, or a MindIR of one."""
    from mindspore import Tensor

    def step(arrays: Sequence[Array]) -> list[Array]:
        return [
            output.asnumpy() for output in graph(*(Tensor(np.ascontiguousarray(array)) for array in arrays))
        ]

    return step


def onnx_step(file: Path) -> Step:
    """An ONNX step graph.

    Raises:
        InputError: the packages aren't installed, or the graph is unsafe.
    """
    from evalkit.backends.onnx_session import open_session

    session = open_session(file)
    names = [port.name for port in session.get_inputs()]

    def step(arrays: Sequence[Array]) -> list[Array]:
        return list(session.run(None, dict(zip(names, arrays, strict=True))))

    return step


def static_step(prefill: Step, decode: Step, spec: ModelSpec, rows: int, length: int) -> Step:
    """Two static step graphs as one: what is smaller than their shapes is filled up.

    Args:
        prefill: [rows, length] new tokens after one cached slot, which is empty.
        decode: [rows, 1] new token after `length` cached slots.
        spec: the architecture.
        rows, length: of both.
    """

    def step(arrays: Sequence[Array]) -> list[Array]:
        token_ids, positions, past_positions, last_index, *cache = arrays
        used, new = token_ids.shape
        graph, wanted, slots = (decode, 1, length) if past_positions.shape[1] else (prefill, length, 1)
        inputs = [
            _filled(token_ids, (rows, wanted), 0),
            _filled(positions, (rows, wanted), -1),
            _filled(past_positions, (rows, slots), -1),
            _filled(last_index, (rows,), 0),
            *(_filled(part, (rows, spec.kv_heads, slots, spec.head_size), 0) for part in cache),
        ]
        logits, *keys_values = graph(inputs)
        return [logits[:used], *(part[:used, :, :new] for part in keys_values)]

    return step


def _filled(array: Array, shape: tuple[int, ...], value: int) -> Array:
    result = np.full(shape, value, array.dtype)
    result[tuple(slice(size) for size in array.shape)] = array
    return result
