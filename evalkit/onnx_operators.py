"""The check of an ONNX graph before ONNX Runtime sees a byte.

An ONNX file can name custom operators (native code, where a library is registered), read other files as external
data, and hold sub-graphs and functions: a decoder needs none of them.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from evalkit.errors import InputError

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

ALLOWED_ONNX_OPERATORS = frozenset(
    [
        "Add",
        "And",
        "ArgMax",
        "Attention",
        "Cast",
        "Concat",
        "Constant",
        "ConstantOfShape",
        "Cos",
        "Div",
        "Equal",
        "Erf",
        "Exp",
        "Expand",
        "Gather",
        "GatherElements",
        "GatherND",
        "Gelu",
        "Gemm",
        "Greater",
        "GreaterOrEqual",
        "Identity",
        "LayerNormalization",
        "Less",
        "LessOrEqual",
        "Log",
        "LogSoftmax",
        "MatMul",
        "Max",
        "Min",
        "Mul",
        "Neg",
        "Not",
        "Or",
        "Pad",
        "Pow",
        "RMSNormalization",
        "Range",
        "Reciprocal",
        "ReduceMax",
        "ReduceMean",
        "ReduceSum",
        "ReduceSumSquare",
        "Reshape",
        "RotaryEmbedding",
        "ScatterElements",
        "Shape",
        "Sigmoid",
        "Sin",
        "Slice",
        "Softmax",
        "Split",
        "Sqrt",
        "Squeeze",
        "Sub",
        "Tanh",
        "Tile",
        "TopK",
        "Transpose",
        "Unsqueeze",
        "Where",
    ]
)


def check_onnx(path: Path) -> None:
    """Refuse the ONNX file at `path` if it holds something that a decoder doesn't need.

    Raises:
        InputError: `onnx` isn't installed, the file isn't an ONNX model, or it holds such a thing; names it.
    """
    try:
        from onnx import ModelProto
    except ImportError:
        raise InputError(
            f'{path}: ONNX graphs need the packages onnx and onnxruntime; pip install "evalkit[onnx]"'
        ) from None
    from google.protobuf.message import DecodeError

    model = ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError:
        raise InputError(f"{path}: not an ONNX graph; export the bundle again") from None
    problem = _problem(model)
    if problem is not None:
        raise InputError(
            f"{path}: {problem}; don't trust this bundle, or export it again with a supported model family"
        )


def _problem(model: "ModelProto") -> str | None:
    from onnx import AttributeProto

    graph = model.graph
    if not graph.node:
        return "not an ONNX graph"
    if model.functions:
        return "the graph defines functions of its own"
    foreign = sorted({node.domain for node in graph.node} - {"", "ai.onnx"})
    if foreign:
        return f"operators of a custom domain: {', '.join(foreign)}"
    unknown = sorted({node.op_type for node in graph.node} - ALLOWED_ONNX_OPERATORS)
    if unknown:
        return f"operators outside the allow-list: {', '.join(unknown)}"
    tensors: list[TensorProto] = list(graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
                return "the graph holds sub-graphs"
            if attribute.type == AttributeProto.TENSOR:
                tensors.append(attribute.t)
    if graph.sparse_initializer:
        return "the graph holds sparse tensors"
    if any(tensor.data_location != tensor.DEFAULT or tensor.external_data for tensor in tensors):
        return "the graph keeps parameters outside its file"
    return None
