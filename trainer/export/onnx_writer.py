"""ONNX graphs node by node: a value is its name."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from evalkit.bundle import GraphPort

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

# Attention, RotaryEmbedding and RMSNormalization are standard from here on.
_OPSET, _IR_VERSION = 23, 11


class GraphWriter:
    """Collects nodes and constants of one graph."""

    def __init__(self) -> None:
        self._nodes: list[NodeProto] = []
        self._tensors: dict[str, TensorProto] = {}

    def constant(self, name: str, value: npt.ArrayLike) -> str:
        """A tensor kept in the graph under `name`; the first one given under a name stays."""
        from onnx import numpy_helper

        if name not in self._tensors:
            self._tensors[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def integers(self, *values: int) -> str:
        """A constant int64 [len(values)]: a shape, or a list of axes."""
        name = "integers_" + "_".join(str(value) for value in values).replace("-", "minus")
        return self.constant(name, np.array(values, np.int64))

    def op(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output and return the output's name."""
        return self.ops(operator, 1, *inputs, **attributes)[0]

    def ops(self, operator: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        """Add a node with `count` outputs and return their names."""
        from onnx import helper

        number = len(self._nodes)
        outputs = [f"{operator}_{number}_{index}" for index in range(count)]
        self._nodes.append(helper.make_node(operator, list(inputs), outputs, **attributes))
        return outputs

    def model(
        self, name: str, inputs: list[GraphPort], outputs: list[GraphPort], values: list[str], axes: list[str]
    ) -> "ModelProto":
        """The finished model.

        Args:
            name: of the graph.
            inputs, outputs: the ports.
            values: what the outputs are, in order.
            axes: names of the dynamic axes of each port, in order.
        """
        from onnx import TensorProto, helper

        for port, value in zip(outputs, values, strict=True):
            self._nodes.append(helper.make_node("Identity", [value], [port.name]))
        types = {"int32": TensorProto.INT32, "float32": TensorProto.FLOAT}
        fed, given = (
            [
                helper.make_tensor_value_info(port.name, types[port.dtype], _shape(port, axes))
                for port in ports
            ]
            for ports in (inputs, outputs)
        )
        graph = helper.make_graph(self._nodes, name, fed, given, list(self._tensors.values()))
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION
        )


def _shape(port: GraphPort, axes: list[str]) -> list[str | int]:
    names = iter(axes)
    return [next(names) if size is None else size for size in port.shape]
