"""The operator allow-list for MindIR graphs.

A MindIR can name a native library to run (`Custom` with func_type aot) or carry Python (`PyExecute` on older
runtimes), and its format has no integrity check; so a graph is read as plain protobuf and refused if it holds an
operator that a decoder-only transformer doesn't need.
"""

import importlib.util
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from evalkit.errors import InputError

ALLOWED_OPERATORS = frozenset(
    [
        "Add",
        "AddExt",
        "AddN",
        "ArgMaxWithValue",
        "Argmax",
        "BatchMatMul",
        "BiasAdd",
        "BroadcastTo",
        "Cast",
        "Concat",
        "Constant",
        "Cos",
        "Depend",
        "Div",
        "Divs",
        "Equal",
        "Erf",
        "Exp",
        "ExpandDims",
        "FillV2",
        "Gather",
        "GatherD",
        "GatherNd",
        "GeLU",
        "Greater",
        "GreaterEqual",
        "LayerNorm",
        "Less",
        "LessEqual",
        "Load",
        "Log",
        "LogSoftmax",
        "LogicalAnd",
        "LogicalNot",
        "LogicalOr",
        "MakeTuple",
        "MatMul",
        "MatMulExt",
        "Maximum",
        "Minimum",
        "Mul",
        "Muls",
        "Neg",
        "NotEqual",
        "OnesLike",
        "Pow",
        "Range",
        "RealDiv",
        "Reciprocal",
        "ReduceMax",
        "ReduceMean",
        "ReduceSum",
        "Reshape",
        "Rsqrt",
        "Select",
        "Shape",
        "SiLU",
        "Sigmoid",
        "Sin",
        "Slice",
        "Softmax",
        "Split",
        "Sqrt",
        "Square",
        "Squeeze",
        "StridedSlice",
        "Sub",
        "SubExt",
        "Tanh",
        "TensorScatterElements",
        "TensorShape",
        "Tile",
        "TopK",
        "TopkExt",
        "Transpose",
        "TransposeExt",
        "TupleGetItem",
        "UpdateState",
        "ZerosLike",
        "ScalarAdd",
        "ScalarMul",
        "ScalarSub",
        "ScalarDiv",
        "ScalarFloorDiv",
        "ScalarToTensor",
        "TupleToTensor",
        "RealMakeTuple",
        "RealTupleGetItem",
        "MaskedFill",
        "Return",
    ]
)


@lru_cache(maxsize=1)
def _mindir_messages() -> ModuleType:
    # The protobuf classes lie in MindSpore's folder but need only protobuf: loaded by path, MindSpore isn't imported.
    package = importlib.util.find_spec("mindspore")
    if package is None or not package.submodule_search_locations:
        raise InputError(
            "mindspore isn't installed, so a MindIR graph can't be checked; install evalkit with its dependencies"
        )
    file = Path(package.submodule_search_locations[0]) / "train" / "mind_ir_pb2.py"
    spec = importlib.util.spec_from_file_location("_mind_ir_pb2", file)
    if spec is None or spec.loader is None:
        raise InputError(f"{file}: can't be loaded; reinstall mindspore 2.10.0")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_mindir(path: Path) -> Any:
    """The ModelProto in the MindIR at `path`, read without MindSpore.

    Raises:
        InputError: the file isn't a MindIR.
    """
    from google.protobuf.message import DecodeError

    model = _mindir_messages().ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError:
        raise InputError(f"{path}: not a MindIR graph; export the bundle again") from None
    return model


def graph_operators(path: Path) -> frozenset[str]:
    """The operator types that the MindIR at `path` uses, read without MindSpore.

    Raises:
        InputError: the file isn't a MindIR, or keeps data outside itself.
    """
    model = read_mindir(path)
    graphs = [model.graph, *model.functions]
    if any(parameter.HasField("external_data") for graph in graphs for parameter in graph.parameter):
        raise InputError(
            f"{path}: the graph keeps parameters outside its file; evalkit doesn't load such graphs"
        )
    named = {primitive.op_type for primitive in model.primitives}
    # A node either refers to one of the primitives above or to another graph of this file (REF::), or names its own type.
    used = {node.op_type for graph in graphs for node in graph.node if not node.op_type.startswith("REF::")}
    return frozenset(named | {name.rpartition("::")[2] for name in used})


def check_operators(path: Path) -> None:
    """Refuse the MindIR at `path` if it uses an operator outside the allow-list.

    Raises:
        InputError: names the file and the operators.
    """
    foreign = sorted(graph_operators(path) - ALLOWED_OPERATORS)
    if foreign:
        raise InputError(
            f"{path}: operators outside the allow-list: {', '.join(foreign)}; don't trust this bundle, "
            "or export it again with a supported model family"
        )
