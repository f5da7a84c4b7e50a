"""ONNX twin of the score graph: exported with fixed sizes, then both axes are made dynamic.

MindSpore's exporter writes the sizes of the sample rows, and their products, into Reshape nodes. So the sample has sizes
that occur nowhere in the model: wherever one of them stands as a size, the size of `token_ids` at run time is put.
"""

import math
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from evalkit.bundle import GraphPort, ModelSpec
from evalkit.errors import InputError

if TYPE_CHECKING:
    from mindspore import nn
    from onnx import GraphProto, NodeProto

_AXES = ("rows", "length")
_FIRST_INPUT = "token_ids"
_MOST_AXES = 8


def require_onnx() -> None:
    """Refuse early where the packages for ONNX aren't installed."""
    for package in ("onnx", "onnxruntime"):
        if find_spec(package) is None:
            raise InputError(f'--format onnx: needs the package {package}; pip install "evalkit[onnx]"')


def export_onnx(
    graph: "nn.Cell", spec: ModelSpec, inputs: list[GraphPort], outputs: list[GraphPort], file: Path
) -> None:
    """Write a graph of whole rows as one ONNX file whose rows and row length are dynamic.

    Args:
        graph: int32 [rows, length] inputs; the shapes of its outputs begin so.
        spec: of its model.
        inputs, outputs: names in call order.
        file: to write.

    Raises:
        InputError: the model uses an operator that MindSpore can't export.
    """
    import mindspore as ms
    import mindspore.onnx
    import onnx

    rows, length = sample_sizes(spec)
    samples = [ms.Tensor(np.ones((rows, length), np.int32)) for _ in inputs]
    graph.set_train(False)
    try:
        mindspore.onnx.export(
            graph, *samples, file_name=str(file), input_names=[port.name for port in inputs]
        )
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0]
        raise InputError(f"--format onnx: MindSpore can't export this model ({first}); use mindir") from None
    model = onnx.load(str(file))
    _rename_outputs(model.graph, [port.name for port in outputs])
    _make_dynamic(model.graph, rows, length)
    del model.graph.value_info[:]  # the sample's shapes, about which ONNX Runtime would warn at each call
    onnx.checker.check_model(model)
    file.unlink()
    file.write_bytes(model.SerializeToString())


def sample_sizes(spec: ModelSpec) -> tuple[int, int]:
    """Two primes that divide no size of the model, so that a size made of them can't be meant otherwise."""
    sizes = [
        spec.hidden_size,
        spec.intermediate_size,
        spec.vocab_size,
        spec.max_length,
        spec.heads,
        spec.kv_heads,
        spec.head_size,
    ]
    taken = math.lcm(*sizes)
    found = [prime for prime in _primes(5, min(spec.max_length, 100)) if taken % prime]
    if len(found) < 2:
        raise InputError("--format onnx: max_length is too small for an ONNX export; use mindir")
    return found[0], found[1]


def _primes(start: int, stop: int) -> Iterator[int]:
    return (n for n in range(start, stop) if all(n % divisor for divisor in range(2, math.isqrt(n) + 1)))


def _rename_outputs(graph: "GraphProto", names: list[str]) -> None:
    for output, name in zip(graph.output, names, strict=True):
        old, output.name = output.name, name
        for node in graph.node:
            for place in (node.input, node.output):
                for index, value in enumerate(place):
                    if value == old:
                        place[index] = name


def _make_dynamic(graph: "GraphProto", rows: int, length: int) -> None:
    for port in (*graph.input, *graph.output):
        # Raw logits have a third axis, the vocabulary.
        for dimension, axis in zip(port.type.tensor_type.shape.dim, _AXES, strict=False):
            dimension.dim_param = axis
    patch = _ShapePatch(graph, rows, length)
    for node in list(graph.node):
        if node.op_type == "Reshape":
            node.input[1] = patch.dynamic(node.input[1])
    patch.shrink_fills()
    patch.place()
    _drop_unused_constants(graph)
    _check_sizes(graph, rows, length)


class _ShapePatch:
    """Replaces constant shapes by shapes computed from the first input."""

    def __init__(self, graph: "GraphProto", rows: int, length: int) -> None:
        self.graph, self.sizes = graph, {rows: _AXES[0], length: _AXES[1]}
        self.product = rows * length
        self.new: list[NodeProto] = []
        self.done: dict[tuple[int, ...], str] = {}

    def dynamic(self, name: str) -> str:
        """Name of a value that equals the constant shape `name` at the sample's sizes and fits any others."""
        shape = tuple(int(size) for size in _constants(self.graph)[name].ravel())
        if not any(size in self.sizes or size == self.product for size in shape):
            return name
        if shape not in self.done:
            self.done[shape] = self._build(shape)
        return self.done[shape]

    def _build(self, shape: tuple[int, ...]) -> str:
        from onnx import helper

        if not self.new:
            self._axis_nodes()
        parts = []
        for size in shape:
            if size in self.sizes:
                parts.append(self.sizes[size])
            else:
                parts.append(self._constant(f"size_{size}", -1 if size == self.product else size))
        result = "shape_" + "_".join(self.sizes.get(size, str(size)) for size in shape)
        self.new.append(helper.make_node("Concat", parts, [result], axis=0))
        return result

    def _axis_nodes(self) -> None:
        from onnx import helper

        self.new.append(helper.make_node("Shape", [_FIRST_INPUT], ["input_shape"]))
        for axis, name in enumerate(_AXES):
            index = self._constant(f"axis_{axis}", axis)
            self.new.append(helper.make_node("Gather", ["input_shape", index], [name], axis=0))

    def _constant(self, name: str, value: int) -> str:
        from onnx import numpy_helper

        if name not in {tensor.name for tensor in self.graph.initializer}:
            self.graph.initializer.append(numpy_helper.from_array(np.array([value], np.int64), name))
        return name

    def shrink_fills(self) -> None:
        """A constant of the sample's size holds one value everywhere: kept once, it is broadcast."""
        from onnx import numpy_helper

        for tensor in self.graph.initializer:
            if not any(size in self.sizes or size == self.product for size in tensor.dims):
                continue
            value = numpy_helper.to_array(tensor)
            if (value == value.flat[0]).all():
                tensor.CopyFrom(
                    numpy_helper.from_array(value.reshape(-1)[:1].reshape([1] * value.ndim), tensor.name)
                )

    def place(self) -> None:
        """Put the new nodes first: nodes stand in the order of their use."""
        old = list(self.graph.node)
        del self.graph.node[:]
        self.graph.node.extend([*self.new, *old])


def _constants(graph: "GraphProto") -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    from onnx import numpy_helper

    found = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if tensor.data_type == tensor.INT64 or tensor.data_type == tensor.INT32
    }
    for node in graph.node:
        if node.op_type == "Constant":
            found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return found


def _drop_unused_constants(graph: "GraphProto") -> None:
    used = {name for node in graph.node for name in node.input}
    nodes = [node for node in graph.node if node.op_type != "Constant" or node.output[0] in used]
    tensors = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(tensors)


def _check_sizes(graph: "GraphProto", rows: int, length: int) -> None:
    for name, value in _constants(graph).items():
        small = value.dtype.kind == "i" and value.size <= _MOST_AXES
        if small and any(size > 1 and (size % rows == 0 or size % length == 0) for size in value.ravel()):
            raise InputError(f"--format onnx: the graph has a fixed size at {name}; use mindir")
    for tensor in graph.initializer:
        if any(size % rows == 0 or size % length == 0 for size in tensor.dims if size):
            raise InputError(f"--format onnx: the graph has a fixed size at {tensor.name}; use mindir")
