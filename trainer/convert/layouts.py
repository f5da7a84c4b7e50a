"""Between our layout of a weight and another format's: pure rearrangements, exact in both directions.

Arrays are matrices (outputs, inputs) or biases (outputs,) in our layout.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from evalkit.bundle import ModelSpec
from trainer.convert.names import Layout

Floats = npt.NDArray[np.float32]
Shape = tuple[int, ...]


def joined_shape(layout: Layout, shapes: Sequence[Shape]) -> Shape:
    """Shape of the foreign tensor that holds weights of our `shapes`."""
    outputs, inputs = sum(shape[0] for shape in shapes), shapes[0][1:]
    if layout in (Layout.TRANSPOSED, Layout.FUSED_COLUMNS):
        return (*inputs, outputs)
    return (outputs, *inputs)


def split(layout: Layout, tensor: Floats, shapes: Sequence[Shape], model: ModelSpec) -> list[Floats]:
    """Our weights out of a foreign tensor.

    Args:
        layout: of the tensor.
        tensor: of the shape that `joined_shape` gives.
        shapes: of our weights, in the table's order.
        model: tells head counts.
    """
    if layout in (Layout.TRANSPOSED, Layout.FUSED_COLUMNS):
        tensor = tensor.T
    if layout == Layout.INTERLEAVED:
        return [_half_split(tensor, model.head_size)]
    if layout == Layout.FUSED_ALTERNATING:
        return [tensor[index :: len(shapes)] for index in range(len(shapes))]
    if layout == Layout.FUSED_GROUPS:
        groups = tensor.reshape(model.kv_heads, -1, *tensor.shape[1:])  # [kv_heads, outputs of one, inputs]
        sizes = [shape[0] // model.kv_heads for shape in shapes]
        parts = np.split(groups, np.cumsum(sizes)[:-1], axis=1)
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
    return np.split(tensor, np.cumsum([shape[0] for shape in shapes])[:-1])


def join(layout: Layout, parts: Sequence[Floats], model: ModelSpec) -> Floats:
    """The foreign tensor that holds our weights `parts`; undone by `split`."""
    if layout == Layout.INTERLEAVED:
        return _interleaved(parts[0], model.head_size)
    if layout == Layout.FUSED_ALTERNATING:
        pairs: Floats = np.stack(parts, axis=1)
        return pairs.reshape(-1, *parts[0].shape[1:])
    if layout == Layout.FUSED_GROUPS:
        groups: Floats = np.concatenate(
            [part.reshape(model.kv_heads, -1, *part.shape[1:]) for part in parts], axis=1
        )
        return groups.reshape(-1, *parts[0].shape[1:])
    rows: Floats = np.concatenate(parts)
    return rows.T if layout in (Layout.TRANSPOSED, Layout.FUSED_COLUMNS) else rows


def _half_split(rows: Floats, head_size: int) -> Floats:
    # llama2.c and llama.cpp pair channels (2i, 2i + 1) of a head, this project (i, i + size / 2).
    pairs = rows.reshape(-1, head_size // 2, 2, *rows.shape[1:])  # [heads, size / 2, 2, inputs]
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _interleaved(rows: Floats, head_size: int) -> Floats:
    halves = rows.reshape(-1, 2, head_size // 2, *rows.shape[1:])  # [heads, 2, size / 2, inputs]
    return halves.swapaxes(1, 2).reshape(rows.shape)
