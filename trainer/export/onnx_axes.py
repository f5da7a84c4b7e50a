"""Fixed sizes in an ONNX graph become the sizes of its inputs at run time.

MindSpore's exporter writes the sizes of the sample inputs, their products included, into Reshape nodes. So the sample
has sizes that occur nowhere in the model: wherever such a prime divides a size, that size is computed at run time.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evalkit.bundle import GraphPort, ModelSpec
from evalkit.errors import InputError

if TYPE_CHECKING:
    from mindspore import nn
    from onnx import GraphProto, ModelProto, NodeProto

_RESHAPES = ("Reshape", "Expand")
_SMALLEST, _LARGEST = 5, 200
# Shapes have few entries; longer integer constants are tables.
_MOST_AXES = 8


def unused_primes(spec: ModelSpec) -> Iterator[int]:
    """Primes that divide no size of the model, ascending: a size made of them can't be meant otherwise."""
    taken = math.lcm(*model_sizes(spec))
    for number in range(_SMALLEST, _LARGEST):
        if all(number % divisor for divisor in range(2, math.isqrt(number) + 1)) and taken % number:
            yield number


def model_sizes(spec: ModelSpec) -> set[int]:
    """Every whole number in the architecture that could stand in a graph."""
    sizes = {
        spec.hidden_size,
        spec.intermediate_size,
        spec.vocab_size,
        spec.max_length,
        spec.heads,
        spec.kv_heads,
        spec.head_size,
    }
    return sizes if spec.attention_window is None else sizes | {spec.attention_window}


def rename_ports(
    graph: "GraphProto", inputs: list[GraphPort], outputs: list[GraphPort], axes: Mapping[str, Sequence[str]]
) -> None:
    """Give the outputs their names, and inputs and outputs their dynamic axes.

    Args:
        graph: with its inputs and outputs in the order of the ports.
        inputs, outputs: names and shapes; None is dynamic.
        axes: names of a port's dynamic axes in order.
    """
    for output, port in zip(graph.output, outputs, strict=True):
        old, output.name = output.name, port.name
        for node in graph.node:
            for place in (node.input, node.output):
                for index, value in enumerate(place):
                    if value == old:
                        place[index] = port.name
    for described, port in zip((*graph.input, *graph.output), (*inputs, *outputs), strict=True):
        names = iter(axes[port.name])
        for dimension, size in zip(described.type.tensor_type.shape.dim, port.shape, strict=True):
            if size is None:
                dimension.dim_param = next(names)


def export_sample(graph: "nn.Cell", samples: Sequence[Any], names: list[str], file: Path) -> "ModelProto":
    """What MindSpore's exporter makes of `graph`, with the sample's sizes still in it.

    Args:
        graph: to export.
        samples: its inputs as arrays, of sizes from `unused_primes`.
        names: of the inputs.
        file: where the exporter may write; it is removed.

    Raises:
        InputError: the graph holds an operator that MindSpore can't export.
    """
    import mindspore as ms
    import mindspore.onnx
    import onnx

    graph.set_train(False)
    tensors = [ms.Tensor(sample) for sample in samples]
    try:
        mindspore.onnx.export(graph, *tensors, file_name=str(file), input_names=names)
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0]
        raise InputError(f"--format onnx: MindSpore can't export this model ({first}); use mindir") from None
    model = onnx.load(str(file))
    file.unlink()
    return model


def write_checked(model: "ModelProto", file: Path) -> None:
    """Check the rewritten model and write it."""
    import onnx

    del model.graph.value_info[:]  # the sample's shapes, about which ONNX Runtime would warn at each call
    onnx.checker.check_model(model)
    file.write_bytes(model.SerializeToString())


class DynamicSizes:
    """Replaces the shapes of Reshape nodes by shapes computed at run time."""

    def __init__(self, graph: "GraphProto", primes: dict[int, str]) -> None:
        """Start on `graph`.

        Args:
            graph: changed in place.
            primes: the sample's sizes, and the names of the values ([1], int64) that stand for them at run time;
                `axis` and `add` compute these.
        """
        self.graph, self.primes = graph, primes
        self._new: list[NodeProto] = []
        self._done: set[str] = set()

    def axis(self, result: str, tensor: str, index: int) -> None:
        """`result` = size of axis `index` of the input `tensor`."""
        from onnx import helper

        shape = f"{tensor}_shape"
        self._once(shape, lambda: helper.make_node("Shape", [tensor], [shape]))
        self._once(
            result, lambda: helper.make_node("Gather", [shape, self._constant(index)], [result], axis=0)
        )

    def add(self, result: str, left: str, right: str) -> None:
        """`result` = left + right."""
        self._binary("Add", result, left, right)

    def rewrite(self) -> None:
        """Rewrite the graph; call once, after the axes.

        Raises:
            InputError: a fixed size is left somewhere.
        """
        constants = integer_constants(self.graph)
        for node in self.graph.node:
            if node.op_type not in _RESHAPES or node.input[1] not in constants:
                continue
            sizes = [int(size) for size in constants[node.input[1]].ravel()]
            if not any(self._factors(size)[1] for size in sizes):
                continue
            node.input[1] = self._shape([self._size(size) for size in sizes])
        # Nodes stand in the order of their use.
        old = list(self.graph.node)
        del self.graph.node[:]
        self.graph.node.extend([*self._new, *old])
        drop_unused(self.graph)
        self._check()

    def _factors(self, size: int) -> tuple[int, list[str]]:
        names = []
        for prime, name in self.primes.items():
            while size > 0 and size % prime == 0:
                size //= prime
                names.append(name)
        return size, names

    def _shape(self, parts: list[str]) -> str:
        from onnx import helper

        result = "shape_of_" + "_".join(parts)
        self._once(result, lambda: helper.make_node("Concat", parts, [result], axis=0))
        return result

    def _size(self, size: int) -> str:
        rest, names = self._factors(size)
        if not names:
            return self._constant(size)
        parts = names if rest == 1 else [self._constant(rest), *names]
        result = parts[0]
        for part in parts[1:]:
            product = f"{result}x{part}"
            self._binary("Mul", product, result, part)
            result = product
        return result

    def _binary(self, operator: str, result: str, left: str, right: str) -> None:
        from onnx import helper

        self._once(result, lambda: helper.make_node(operator, [left, right], [result]))

    def _once(self, name: str, make: "Callable[[], NodeProto]") -> None:
        if name not in self._done:
            self._done.add(name)
            self._new.append(make())

    def _constant(self, value: int) -> str:
        from onnx import numpy_helper

        name = f"size_{value}".replace("-", "minus_")
        if name not in self._done:
            self._done.add(name)
            self.graph.initializer.append(numpy_helper.from_array(np.array([value], np.int64), name))
        return name

    def _check(self) -> None:
        for name, value in integer_constants(self.graph).items():
            if value.size <= _MOST_AXES and any(self._factors(int(size))[1] for size in value.ravel()):
                raise InputError(f"--format onnx: the graph has a fixed size at {name}; use mindir")
        for tensor in self.graph.initializer:
            if any(self._factors(size)[1] for size in tensor.dims):
                raise InputError(f"--format onnx: the graph has a fixed size at {tensor.name}; use mindir")


def integer_constants(graph: "GraphProto") -> dict[str, "np.ndarray[Any, Any]"]:
    """Integer initialisers and Constant nodes by name."""
    from onnx import numpy_helper

    found = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if tensor.data_type in (tensor.INT64, tensor.INT32)
    }
    for node in graph.node:
        if node.op_type == "Constant":
            value = numpy_helper.to_array(node.attribute[0].t)
            if value.dtype.kind == "i":
                found[node.output[0]] = value
    return found


def drop_unused(graph: "GraphProto") -> None:
    """Remove constants that nothing reads."""
    used = {name for node in graph.node for name in node.input}
    nodes = [node for node in graph.node if node.op_type != "Constant" or node.output[0] in used]
    tensors = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(tensors)
