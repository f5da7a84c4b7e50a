"""Graphs as MindSpore dumps them, read without MindSpore: IR text (MS_DEV_SAVE_GRAPHS) and MindIR (protobuf)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalkit.errors import InputError
from evalkit.files import read_text
from evalkit.operators import read_mindir

_DTYPE_BYTES = {
    "Float64": 8, "Int64": 8, "UInt64": 8, "Complex64": 8, "Complex128": 16, "Float32": 4, "Int32": 4, "UInt32": 4,
    "Float16": 2, "BFloat16": 2, "Int16": 2, "UInt16": 2, "Int8": 1, "UInt8": 1, "Bool": 1,
}  # fmt: skip
# Numbers of TensorProto.DataType in mind_ir.proto.
_MINDIR_DTYPES = {
    1: "Float32", 2: "UInt8", 3: "Int8", 4: "UInt16", 5: "Int16", 6: "Int32", 7: "Int64", 9: "Bool", 10: "Float16",
    11: "Float64", 17: "Float64", 12: "UInt32", 13: "UInt64", 14: "Complex64", 15: "Complex128", 16: "BFloat16",
}  # fmt: skip

_SUBGRAPH = re.compile(r"^subgraph @([\w.]+)\(")
_ENTRY = re.compile(r"^# IR entry: @([\w.]+)")
_PARAMETER = re.compile(r"^%(para\d+)_(\S+?): (<.*>)")
_NODE = re.compile(r"^\s+%(\d+)\([^)]*\) = (.+)$")
_USE = re.compile(r"%(para\d+)_[^,)\s]+|%(\d+)")
_DTYPES = re.compile(r"Tensor\[(\w+)\](?:\*(\d+))?")
_SHAPE = re.compile(r"\(([-\d, ]*)\)")


@dataclass(frozen=True)
class Operation:
    """One node of a graph.

    Attributes:
        name: unique in its graph.
        kind: the operator, e.g. MatMul.
        inputs: names of operations, parameters or inputs.
        output_bytes: of its results together; None where a shape isn't known.
        scope: where in the network it stands, or "".
        writes_parameters: True where it gets a parameter itself (not its value), as optimizers do.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    output_bytes: int | None
    scope: str = ""
    writes_parameters: bool = False


@dataclass(frozen=True)
class Graph:
    """A graph in its order of execution.

    Attributes:
        resident: name → bytes of what lies in memory throughout: parameters and inputs.
        parameters: the names among `resident` that are parameters.
        outputs: names of what is returned.
        calls: names of other graphs that it calls; they aren't followed.
    """

    source: Path
    operations: tuple[Operation, ...]
    resident: dict[str, int]
    parameters: frozenset[str]
    outputs: tuple[str, ...]
    calls: tuple[str, ...]


def read_graph(path: Path) -> Graph:
    """The graph in an IR text (.ir) or a MindIR (.mindir).

    Raises:
        InputError: no such file, or neither of the two.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; give an .ir of MS_DEV_SAVE_GRAPHS or a .mindir")
    if path.suffix == ".mindir":
        return _read_mindir(path)
    if path.suffix == ".ir":
        return _read_text(path)
    raise InputError(
        f"{path}: neither .ir nor .mindir; give a graph of MS_DEV_SAVE_GRAPHS, such as NN_validate_*.ir"
    )


def _read_text(path: Path) -> Graph:
    lines = read_text(path).splitlines()
    entry = next((found.group(1) for line in lines if (found := _ENTRY.match(line))), None)
    if entry is None:
        raise InputError(
            f"{path}: no `# IR entry:` line; give a graph that MS_DEV_SAVE_GRAPHS=1 wrote, such as NN_validate_*.ir"
        )
    resident: dict[str, int] = {}
    parameters = set()
    for line in lines:
        if found := _PARAMETER.match(line):
            resident[found.group(1)] = _type_bytes(found.group(3)) or 0
            if found.group(3).startswith("<Ref["):
                parameters.add(found.group(1))
    operations: list[Operation] = []
    outputs: tuple[str, ...] = ()
    calls: list[str] = []
    for body, types, scope in _nodes(lines, entry):
        name, expression = body
        if name == "return":
            outputs = _uses(expression)
            continue
        head, _, arguments = expression.partition("(")
        if head.startswith("call "):
            calls.append(head.removeprefix("call @"))
        taken, given = _split_types(types)
        operations.append(
            Operation(
                name=name,
                kind=_kind(head),
                inputs=_uses("(" + _arguments(arguments)),
                output_bytes=_type_bytes(given),
                scope=scope,
                writes_parameters="<Ref[" in taken,
            )
        )
    if not operations:
        raise InputError(
            f"{path}: the graph @{entry} has no operations; give a later pass, such as NN_validate_*.ir"
        )
    return Graph(path, tuple(operations), resident, frozenset(parameters), outputs, tuple(calls))


def _nodes(lines: list[str], entry: str) -> Iterator[tuple[tuple[str, str], str, str]]:
    """(name, expression), its types and its scope of each node of the graph `entry`; the name of its end is "return"."""
    inside = False
    pending: tuple[str, str] | None = None
    types = scope = ""
    for line in lines:
        if found := _SUBGRAPH.match(line):
            inside = found.group(1) == entry
            continue
        if not inside:
            continue
        stripped = line.strip()
        found = _NODE.match(line)
        if found or stripped.startswith("Return(") or line.startswith("}"):
            if pending:
                yield pending, types, scope
            types = scope = ""
            pending = (found.group(1), found.group(2)) if found else None
            if stripped.startswith("Return("):
                yield ("return", stripped.removeprefix("Return")), "", ""
            if line.startswith("}"):
                inside = False
        elif stripped.startswith(": (") and not types:
            types = stripped[2:]
        elif stripped.startswith("# Fullname with scope: ("):
            scope = stripped.removeprefix("# Fullname with scope: (").rstrip(")")


def _kind(head: str) -> str:
    if head.startswith("call "):
        return "call"
    return re.sub(r"^(?:PrimFunc_|S_Prim_|DoSignaturePrimitive::S-Prim-)", "", head.strip()).split("[")[0]


def _arguments(text: str) -> str:
    """Up to the parenthesis that closes the call; attributes after it may name other nodes."""
    depth = 1
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[:position]
    return text


def _uses(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(first or second for first, second in _USE.findall(text)))


def _split_types(types: str) -> tuple[str, str]:
    taken, _, given = types.partition(" -> ")
    return taken, given


def _type_bytes(text: str) -> int | None:
    """Bytes of a printed type: one tensor, a tuple of tensors; 0 for what is no tensor, None for an unknown size."""
    dtypes = [name for name, count in _DTYPES.findall(text) for _ in range(int(count or 1))]
    if not dtypes:
        return 0
    shapes: list[str] = _SHAPE.findall(text.partition("TupleShape")[2] or text)
    if len(shapes) < len(dtypes):
        return None
    total = 0
    for dtype, shape in zip(dtypes, shapes, strict=False):
        size = _DTYPE_BYTES.get(dtype)
        count = _elements(shape)
        if size is None or count is None:
            return None
        total += size * count
    return total


def _elements(shape: str) -> int | None:
    count = 1
    for part in shape.split(","):
        if not (part := part.strip()):
            continue
        if int(part) < 0:
            return None
        count *= int(part)
    return count


def _read_mindir(path: Path) -> Graph:
    model = read_mindir(path)
    graph = model.graph
    resident = {item.name: _tensor_bytes(item) or 0 for item in graph.parameter} | {
        item.name: sum(_tensor_bytes(tensor) or 0 for tensor in item.tensor) for item in graph.input
    }
    parameters = frozenset(item.name for item in graph.parameter)
    operations = []
    for node in graph.node:
        if node.op_type == "Constant":
            continue
        kind = node.op_type.removeprefix("REF::").split(":")[0]
        tensors = [tensor for item in node.attribute if item.name == "shape" for tensor in item.tensors]
        sizes = [_tensor_bytes(tensor) for tensor in tensors]
        operations.append(
            Operation(
                name=node.output[0] if node.output else node.name,
                kind=kind,
                inputs=tuple(dict.fromkeys(node.input)),
                output_bytes=None
                if any(size is None for size in sizes)
                else sum(size or 0 for size in sizes),
                scope=node.domain,
                writes_parameters=any(name in parameters for name in node.input),
            )
        )
    if not operations:
        raise InputError(f"{path}: the graph has no operations; export it again")
    outputs = tuple(item.name for item in graph.output)
    return Graph(
        path, tuple(operations), resident, parameters, outputs, tuple(item.name for item in model.functions)
    )


def _tensor_bytes(tensor: Any) -> int | None:
    size = _DTYPE_BYTES.get(_MINDIR_DTYPES.get(tensor.data_type, ""))
    if size is None:
        return None
    count = 1
    for dimension in tensor.dims:
        if dimension < 0:
            return None
        count *= dimension
    return size * count
