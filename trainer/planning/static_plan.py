"""The memory that a compiled graph needs: liveness of its tensors in order of execution, and what fusion would save.

peak = resident tensors (parameters, inputs) + max over operations of the tensors that live while it runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.planning.graph_dump import Graph, Operation

# Ascend's pool hands out multiples of 512 bytes (taken from its documentation, so a setting).
ALIGNMENT_BYTES = 512

# Nothing new lies in memory behind these: their result is (a part or another shape of) what they get.
_VIEWS = frozenset(
    [
        "Load", "Depend", "MakeTuple", "TupleGetItem", "Reshape", "ExpandDims", "Squeeze", "Flatten", "Identity",
        "StopGradient", "RealMakeTuple", "RealTupleGetItem",
    ]
)  # fmt: skip
# Only for order: what it gets isn't read.
_ORDER_ONLY = frozenset(["UpdateState"])
# With a parameter itself among their inputs these write into it.
_IN_PLACE = ("Assign", "Adam", "Apply", "Fused", "Inplace", "Lamb", "Momentum", "Scatter")
# Element by element: a chain of them can be one kernel, and what lies between never reaches memory.
_ELEMENTWISE = frozenset(
    [
        "Add", "AddExt", "AddN", "Sub", "SubExt", "Mul", "Muls", "Div", "Divs", "RealDiv", "Neg", "Abs", "Exp", "Log", "Sqrt",
        "Rsqrt", "Pow", "Square", "Reciprocal", "Maximum", "Minimum", "Tanh", "Sigmoid", "SiLU", "ReLU", "GeLU", "Cast",
        "BiasAdd", "Select", "Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual", "LogicalAnd", "LogicalOr",
        "LogicalNot", "ReluGrad", "ReLUGrad", "SiLUGrad", "GeLUGrad", "TanhGrad", "SigmoidGrad",
    ]
)  # fmt: skip


@dataclass(frozen=True)
class LiveTensor:
    """A tensor that lives at the peak."""

    name: str
    kind: str
    scope: str
    tensor_bytes: int

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return {"name": self.name, "kind": self.kind, "scope": self.scope, "tensor_bytes": self.tensor_bytes}


@dataclass(frozen=True)
class Liveness:
    """What a graph needs.

    Attributes:
        resident_bytes: parameters and inputs.
        peak_bytes: with them, at the operation `peak_at`.
        allocated_bytes: of all tensors together, had none been freed.
        largest: the tensors at the peak, largest first.
        unknown: operations whose result has no known size; they count as 0.
    """

    resident_bytes: int
    peak_bytes: int
    peak_at: str
    allocated_bytes: int
    largest: tuple[LiveTensor, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class StaticPlan:
    """Liveness as the graph stands, and with its chains of element-wise operations fused.

    Attributes:
        fused: operations whose result a fused kernel wouldn't write.
        saved_bytes: of memory traffic: the tensors that aren't written.
        not_followed: graphs that are called; their memory isn't counted.
    """

    graph: Graph
    plain: Liveness
    after_fusion: Liveness
    fused: tuple[str, ...]
    saved_bytes: int
    not_followed: tuple[str, ...]

    @property
    def gaps(self) -> str | None:
        """What isn't counted, in words; None where everything is."""
        parts = []
        if self.not_followed:
            called = ", ".join(dict.fromkeys(self.not_followed))
            parts.append(f"{len(self.not_followed)} calls of other graphs ({called[:200]})")
        if self.plain.unknown:
            parts.append(f"{len(self.plain.unknown)} results of unknown size")
        return f"not counted: {' and '.join(parts)}" if parts else None

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return {
            "source": str(self.graph.source),
            "operations": len(self.graph.operations),
            "resident_bytes": self.plain.resident_bytes,
            "peak_bytes": self.plain.peak_bytes,
            "peak_at": self.plain.peak_at,
            "allocated_bytes": self.plain.allocated_bytes,
            "largest": [tensor.to_json() for tensor in self.plain.largest],
            "fusion": {
                "operations": len(self.fused),
                "unwritten_bytes": self.saved_bytes,
                "peak_bytes": self.after_fusion.peak_bytes,
            },
            "unknown_sizes": list(self.plain.unknown),
            "not_followed": list(self.not_followed),
        }


def plan_graph(graph: Graph, *, alignment_bytes: int = ALIGNMENT_BYTES, largest: int = 10) -> StaticPlan:
    """Where a graph's memory peaks.

    Args:
        graph: in order of execution.
        alignment_bytes: each tensor takes a multiple of it.
        largest: how many tensors of the peak to name.
    """
    plain = _liveness(graph, frozenset(), alignment_bytes, largest)
    fused = _fusible(graph)
    after = _liveness(graph, fused, alignment_bytes, largest)
    return StaticPlan(
        graph=graph,
        plain=plain,
        after_fusion=after,
        fused=tuple(operation.name for operation in graph.operations if operation.name in fused),
        saved_bytes=plain.allocated_bytes - after.allocated_bytes,
        not_followed=graph.calls,
    )


def _liveness(graph: Graph, fused: frozenset[str], alignment: int, largest: int) -> Liveness:
    storages = _storages(graph, fused)
    sizes = {
        operation.name: -(-(operation.output_bytes or 0) // alignment) * alignment
        for operation in graph.operations
        if storages[operation.name] == (operation.name,)
    }
    end = len(graph.operations)
    last_use = {name: index for index, operation in enumerate(graph.operations) for name in (operation.name,)}
    for index, operation in enumerate(graph.operations):
        # A view reads nothing; what is computed from it does.
        if operation.kind in _VIEWS or operation.kind in _ORDER_ONLY or operation.name in fused:
            continue
        for name in operation.inputs:
            for storage in storages.get(name, ()):
                last_use[storage] = max(last_use[storage], index)
    for name in graph.outputs:
        for storage in storages.get(name, ()):
            last_use[storage] = end
    freed: dict[int, list[str]] = {}
    for name in sizes:
        freed.setdefault(last_use[name], []).append(name)
    live: dict[str, int] = {}
    now = peak = 0
    peak_at, at_peak = "", dict[str, int]()
    for index, operation in enumerate(graph.operations):
        if operation.name in sizes:
            live[operation.name] = sizes[operation.name]
            now += sizes[operation.name]
        if now > peak:
            peak, peak_at, at_peak = now, operation.name, dict(live)
        for name in freed.get(index, ()):
            now -= live.pop(name)
    by_name = {operation.name: operation for operation in graph.operations}
    resident = sum(-(-size // alignment) * alignment for size in graph.resident.values())
    return Liveness(
        resident_bytes=resident,
        peak_bytes=resident + peak,
        peak_at=_shown(by_name.get(peak_at)),
        allocated_bytes=sum(sizes.values()),
        largest=_largest(at_peak, by_name, largest),
        unknown=tuple(operation.name for operation in graph.operations if operation.output_bytes is None),
    )


def _storages(graph: Graph, fused: frozenset[str]) -> dict[str, tuple[str, ...]]:
    """Which operations' memory stands behind each name; resident tensors have none of their own.

    A fused operation stands for what it was computed from, which so lives on until the kernel's end.
    """
    storages: dict[str, tuple[str, ...]] = {}
    for operation in graph.operations:
        if operation.kind in _ORDER_ONLY:
            storages[operation.name] = ()
        elif operation.kind in _VIEWS or operation.name in fused:
            inputs = operation.inputs[:1] if operation.kind == "Depend" else operation.inputs
            behind = [storage for name in inputs for storage in storages.get(name, ())]
            storages[operation.name] = tuple(dict.fromkeys(behind))
        elif operation.writes_parameters and operation.kind.startswith(_IN_PLACE):
            storages[operation.name] = ()
        else:
            storages[operation.name] = (operation.name,)
    return storages


def _fusible(graph: Graph) -> frozenset[str]:
    """Element-wise operations with one reader only, which is element-wise too and makes at least as much."""
    readers: dict[str, list[Operation]] = {}
    behind = _storages(graph, frozenset())
    for operation in graph.operations:
        if operation.kind in _VIEWS or operation.kind in _ORDER_ONLY:
            continue
        for storage in {storage for name in operation.inputs for storage in behind.get(name, ())}:
            readers.setdefault(storage, []).append(operation)
    returned = {storage for name in graph.outputs for storage in behind.get(name, ())}
    return frozenset(
        operation.name
        for operation in graph.operations
        if operation.kind in _ELEMENTWISE
        and operation.output_bytes
        and operation.name not in returned
        and len(readers.get(operation.name, ())) == 1
        and readers[operation.name][0].kind in _ELEMENTWISE
    )


def _largest(live: Mapping[str, int], by_name: Mapping[str, Operation], count: int) -> tuple[LiveTensor, ...]:
    names = sorted(live, key=lambda name: (-live[name], name))[:count]
    return tuple(LiveTensor(name, by_name[name].kind, by_name[name].scope, live[name]) for name in names)


def _shown(operation: Operation | None) -> str:
    return "" if operation is None else (operation.scope or f"{operation.kind} {operation.name}")
