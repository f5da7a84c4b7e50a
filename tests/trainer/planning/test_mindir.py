"""MindIR is read as protobuf: sizes, views, parameters; a small one made here."""

from evalkit.operators import _mindir_messages
from trainer.planning.graph_dump import read_graph
from trainer.planning.static_plan import plan_graph

FLOAT32, BFLOAT16 = 1, 16


def add_tensor(container, name, dims, dtype=FLOAT32):
    tensor = container.add()
    tensor.name, tensor.data_type = name, dtype
    tensor.dims.extend(dims)


def add_node(graph, name, kind, inputs, dims=None, dtype=FLOAT32):
    node = graph.node.add()
    node.name, node.op_type = name, f"REF::{kind}:{len(graph.node)}"
    node.input.extend(inputs)
    node.output.append(name)
    if dims is not None:
        attribute = node.attribute.add()
        attribute.name = "shape"
        add_tensor(attribute.tensors, "", dims, dtype)


def test_a_small_graph_by_hand(tmp_path):
    """1 KiB of weights, 2 KiB of input; while the second product runs, 4 KiB and 1 KiB (bfloat16) live."""
    model = _mindir_messages().ModelProto()
    graph = model.graph
    add_tensor(graph.parameter, "w", [16, 16])
    entry = graph.input.add()
    entry.name = "x"
    add_tensor(entry.tensor, "x", [32, 16])
    add_node(graph, "loaded", "Load", ["w"], [16, 16])
    add_node(graph, "a", "MatMul", ["x", "loaded"], [32, 32])
    add_node(graph, "seen", "Reshape", ["a"], [1024])
    add_node(graph, "b", "MatMul", ["seen"], [32, 16], BFLOAT16)
    add_node(graph, "c", "MatMul", ["b"], [-1, 16])
    graph.output.add().name = "c"
    (tmp_path / "g.mindir").write_bytes(model.SerializeToString())
    plan = plan_graph(read_graph(tmp_path / "g.mindir"))
    assert plan.graph.parameters == {"w"}
    assert plan.plain.resident_bytes == 3 * 1024
    assert plan.plain.peak_bytes == (3 + 5) * 1024
    assert [tensor.name for tensor in plan.plain.largest] == ["a", "b"]
    assert plan.plain.unknown == ("c",)
