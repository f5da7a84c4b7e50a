"""ONNX twin of the step graph: rows, new tokens and cached tokens are dynamic, so it serves prefill and decode."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from evalkit.bundle import ModelSpec
from evalkit.errors import InputError
from trainer.export.graphs import step_ports
from trainer.export.onnx_axes import (
    DynamicSizes,
    export_sample,
    model_sizes,
    rename_ports,
    unused_primes,
    write_checked,
)

if TYPE_CHECKING:
    from trainer.export.graphs import StepGraph

_ROWS, _NEW, _PAST, _ALL = "rows", "new_tokens", "past_tokens", "all_tokens"


def export_onnx_step(graph: "StepGraph", spec: ModelSpec, file: Path) -> None:
    """Write a step graph as one ONNX file.

    Args:
        graph: of the model.
        spec: its architecture.
        file: to write.

    Raises:
        InputError: the model uses an operator that MindSpore can't export.
    """
    inputs, outputs = step_ports(spec)
    rows, new, past = sample_sizes(spec)
    cache = np.zeros((rows, spec.kv_heads, past, spec.head_size), np.float32)
    samples = [
        np.ones((rows, new), np.int32),
        np.ones((rows, new), np.int32),
        np.ones((rows, past), np.int32),
        np.zeros(rows, np.int32),
        *[cache] * (2 * spec.layers),
    ]
    model = export_sample(graph, samples, [port.name for port in inputs], file)
    axes: dict[str, tuple[str, ...]] = {port.name: (_ROWS, _PAST) for port in inputs}
    axes |= {port.name: (_ROWS, _NEW) for port in outputs}
    axes |= {
        "token_ids": (_ROWS, _NEW),
        "positions": (_ROWS, _NEW),
        "last_index": (_ROWS,),
        "logits": (_ROWS,),
    }
    rename_ports(model.graph, inputs, outputs, axes)
    sizes = DynamicSizes(model.graph, {rows: _ROWS, new: _NEW, new + past: _ALL})
    sizes.axis(_ROWS, "token_ids", 0)
    sizes.axis(_NEW, "token_ids", 1)
    sizes.axis(_PAST, "past_positions", 1)
    sizes.add(_ALL, _NEW, _PAST)
    sizes.rewrite()
    write_checked(model, file)


def sample_sizes(spec: ModelSpec) -> tuple[int, int, int]:
    """Rows, new tokens and cached tokens of the sample.

    Rows, new tokens and the sum of new and cached ones are primes that divide no size of the model; the cached ones
    alone are no size of it.
    """
    for rows, new, both in _triples(list(unused_primes(spec))):
        if both - new not in model_sizes(spec) | {1, rows, new}:
            return rows, new, both - new
    raise InputError("--format onnx: no sample sizes fit this model; use mindir")


def _triples(primes: list[int]) -> Iterator[tuple[int, int, int]]:
    for third in range(2, len(primes)):
        for second in range(1, third):
            for first in range(second):
                yield primes[first], primes[second], primes[third]
