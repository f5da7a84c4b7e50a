"""The exported ONNX step graph with its attention replaced by ONNX Runtime's own operator.

The exported graph copies the whole cache in every layer to append a token to it, and pads all rows to one length.
`GroupQueryAttention` (domain com.microsoft, in ONNX Runtime itself) appends in place and reads just the tokens that a
row holds. Only the checked graph of the bundle comes in, and the operator is one of the runtime's own.
"""

from typing import TYPE_CHECKING

import numpy as np

from evalkit.bundle import ModelSpec

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

# Inputs that the rewritten graph has instead of past_positions.
LAST_KEY, LONGEST = "last_key_index", "longest_row"

_DOMAIN, _OPERATOR = "com.microsoft", "GroupQueryAttention"
_QUERY_SHAPE, _KEY_SHAPE = "fused_query_shape", "fused_key_shape"


class _UnknownPatternError(Exception):
    """The graph's attention isn't written as expected."""


def fuse_attention(model: "ModelProto", spec: ModelSpec) -> bool:
    """Rewrite a step graph in place.

    Its inputs become token_ids, positions, last_index, the cache ([rows, kv_heads, room, head_size], `present_*` are
    the same memory), last_key_index int32 [rows] (how many tokens the row will hold, minus one) and longest_row int32
    [1] (the largest number of tokens that a row will hold).

    Returns:
        Whether it was done; otherwise the model is as before.
    """
    if spec.attention_window is not None:
        return False
    try:
        layers = [_Layer(model.graph, index) for index in range(spec.layers)]
    except _UnknownPatternError:
        return False
    _Rewriter(model, spec).run(layers)
    return True


class _Layer:
    """The nodes of one layer's attention in the exported graph."""

    def __init__(self, graph: "GraphProto", index: int) -> None:
        self.index = index
        producers = {name: node for node in graph.node for name in node.output}
        readers: dict[str, list[NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                readers.setdefault(name, []).append(node)

        def reader(name: str, operator: str) -> "NodeProto":
            found = [node for node in readers.get(name, []) if node.op_type == operator]
            if len(found) != 1:
                raise _UnknownPatternError
            return found[0]

        keys = reader(f"past_key_{index}", "Concat")
        values = reader(f"past_value_{index}", "Concat")
        transposed = reader(keys.output[0], "Transpose")
        scores = reader(transposed.output[0], "MatMul")
        masked = reader(scores.output[0], "Add")
        weights = reader(masked.output[0], "Softmax")
        mixed = reader(weights.output[0], "MatMul")
        heads = reader(mixed.output[0], "Reshape")
        by_token = reader(heads.output[0], "Transpose")
        self.after = reader(by_token.output[0], "Reshape")
        grouped = producers.get(scores.input[0])
        if (
            grouped is None
            or grouped.op_type != "Reshape"
            or scores.input[1] != transposed.output[0]
            or mixed.input[1] != values.output[0]
            or keys.input[0] != f"past_key_{index}"
            or values.input[0] != f"past_value_{index}"
        ):
            raise _UnknownPatternError
        self.query, self.key, self.value = grouped.input[0], keys.input[1], values.input[1]
        self.place = mixed
        self.nodes = [
            keys, values, transposed, scores, masked, weights, mixed, grouped, heads, by_token,
        ]  # fmt: skip


class _Rewriter:
    """Puts the operator in the place of each layer's nodes."""

    def __init__(self, model: "ModelProto", spec: ModelSpec) -> None:
        self._model, self._graph, self._spec = model, model.graph, spec

    def run(self, layers: list[_Layer]) -> None:
        """Rewrite nodes, inputs and outputs."""
        from onnx import helper

        removed = {id(node) for layer in layers for node in layer.nodes}
        inserted = {id(layer.place): self._attention(layer) for layer in layers}
        nodes = []
        for node in self._graph.node:
            nodes += inserted.get(id(node), [])
            if id(node) not in removed:
                nodes.append(node)
        for layer in layers:
            layer.after.input[0] = f"fused_{layer.index}"
        self._replace_nodes([*self._shapes(), *nodes])
        self._replace_ports()
        self._model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))

    def _shapes(self) -> list["NodeProto"]:
        """Nodes that compute [rows, new tokens, heads · head_size]; a Reshape can't leave both of the first open."""
        from onnx import helper, numpy_helper

        spec = self._spec
        widths = {_QUERY_SHAPE: spec.heads * spec.head_size, _KEY_SHAPE: spec.kv_heads * spec.head_size}
        nodes = [helper.make_node("Shape", ["token_ids"], ["fused_token_shape"])]
        for name, width in widths.items():
            constant = f"{name}_width"
            self._graph.initializer.append(numpy_helper.from_array(np.array([width], np.int64), constant))
            nodes.append(helper.make_node("Concat", ["fused_token_shape", constant], [name], axis=0))
        return nodes

    def _attention(self, layer: _Layer) -> list["NodeProto"]:
        from onnx import helper

        nodes, tokens = [], []
        for kind, source, shape in (
            ("query", layer.query, _QUERY_SHAPE),
            ("key", layer.key, _KEY_SHAPE),
            ("value", layer.value, _KEY_SHAPE),
        ):
            name = f"fused_{kind}_{layer.index}"
            nodes += [
                helper.make_node("Transpose", [source], [f"{name}_by_token"], perm=[0, 2, 1, 3]),
                helper.make_node("Reshape", [f"{name}_by_token", shape], [name]),
            ]
            tokens.append(name)
        past = [f"past_key_{layer.index}", f"past_value_{layer.index}"]
        present = [f"present_key_{layer.index}", f"present_value_{layer.index}"]
        attend = helper.make_node(
            _OPERATOR,
            [*tokens, *past, LAST_KEY, LONGEST],
            [f"fused_{layer.index}", *present],
            domain=_DOMAIN,
            num_heads=self._spec.heads,
            kv_num_heads=self._spec.kv_heads,
            scale=1.0,  # the exported graph scales the query itself
        )
        return [*nodes, attend]

    def _replace_nodes(self, nodes: list["NodeProto"]) -> None:
        """Keep what the outputs need: the mask and the constants of the old attention go."""
        needed = {"logits", *self._present()}
        kept = []
        for node in reversed(nodes):
            if any(name in needed for name in node.output):
                kept.append(node)
                needed.update(node.input)
        graph = self._graph
        tensors = [tensor for tensor in graph.initializer if tensor.name in needed]
        del graph.node[:], graph.initializer[:]
        graph.node.extend(reversed(kept))
        graph.initializer.extend(tensors)

    def _replace_ports(self) -> None:
        from onnx import TensorProto, helper

        graph = self._graph
        inputs = [port for port in graph.input if port.name != "past_positions"]
        logits = [port for port in graph.output if port.name == "logits"]
        del graph.input[:], graph.output[:]
        graph.input.extend(inputs)
        graph.input.append(helper.make_tensor_value_info(LAST_KEY, TensorProto.INT32, ["rows"]))
        graph.input.append(helper.make_tensor_value_info(LONGEST, TensorProto.INT32, [1]))
        graph.output.extend(logits)
        cache: list[str | int | None] = ["rows", self._spec.kv_heads, "past_tokens", self._spec.head_size]
        for name in self._present():
            graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, cache))

    def _present(self) -> list[str]:
        return [f"present_{kind}_{i}" for i in range(self._spec.layers) for kind in ("key", "value")]
