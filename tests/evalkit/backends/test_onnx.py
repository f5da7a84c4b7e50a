"""The ONNX backend agrees with MindIR, and unsafe graphs are refused before ONNX Runtime sees them."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from evalkit.backends.choice import open_backend
from evalkit.backends.onnx import OnnxBackend
from evalkit.bundle import Bundle
from evalkit.errors import InputError
from evalkit.onnx_operators import check_onnx
from tests.support.real_models import references

onnx = pytest.importorskip("onnx", reason='pip install "evalkit[onnx]"')


@pytest.fixture(scope="module")
def backends(stories_bundle):
    return [open_backend(name, stories_bundle) for name in ("mindir", "onnx")]


@pytest.fixture(scope="module")
def graph_file(stories_bundle) -> Path:
    return stories_bundle.graph_file("score_onnx")


def rows_of(items, rows, length):
    """Reference texts packed one behind the other into rows of one shape; what doesn't fit is left out."""
    token_ids, targets, positions, segments = (np.zeros((rows, length), np.int32) for _ in range(4))
    expected = np.full((rows, length), np.nan)
    row, column, segment = 0, 0, 1
    for item in items:
        ids, size = np.array(item["token_ids"], np.int32), len(item["token_ids"]) - 1
        if column + size > length:
            row, column, segment = row + 1, 0, 1
        if row == rows:
            break
        place = (row, slice(column, column + size))
        token_ids[place], targets[place] = ids[:-1], ids[1:]
        positions[place], segments[place] = np.arange(size), segment
        expected[place] = item["logprobs"]
        column, segment = column + size, segment + 1
    return (token_ids, targets, positions, segments), expected


@pytest.mark.parametrize("shape", [(1, 64), (3, 64), (2, 200), (8, 128)])
def test_both_backends_give_the_reference_for_any_shape(backends, shared_data, shape):
    rows, expected = rows_of(references(shared_data, "stories260K"), *shape)
    asked = ~np.isnan(expected)
    assert asked.sum() > 40
    found = [backend.score(*rows) for backend in backends]
    for stats in found:
        assert np.abs(stats.logprob - expected)[asked].max() < 1e-4
    mindir, onnx_stats = found
    for name in ("logprob", "entropy", "margin"):
        first, second = getattr(mindir, name), getattr(onnx_stats, name)
        assert second.dtype == np.float32 and second.shape == shape
        assert np.abs(first - second)[asked].max() < 1e-4
    for name in ("rank", "top_id"):
        assert getattr(onnx_stats, name).dtype == np.int32
        assert np.array_equal(getattr(mindir, name)[asked], getattr(onnx_stats, name)[asked])


def test_equal_calls_give_equal_bits(backends, shared_data):
    rows, _ = rows_of(references(shared_data, "stories260K"), 4, 128)
    first, second = (backends[1].score(*rows) for _ in range(2))
    assert all(
        np.array_equal(getattr(first, field.name), getattr(second, field.name))
        for field in dataclasses.fields(first)
    )


def test_identity(backends, stories_bundle):
    mindir, onnx_backend = backends
    assert (mindir.name, onnx_backend.name) == ("mindir", "onnx")
    for name in ("model_digest", "precision", "max_length", "vocab_size"):
        assert getattr(mindir, name) == getattr(onnx_backend, name)


def test_a_bundle_without_an_onnx_graph_says_how_to_make_one(stories_bundle):
    graphs = {role: spec for role, spec in stories_bundle.manifest.graphs.items() if role != "score_onnx"}
    manifest = stories_bundle.manifest.model_copy(update={"graphs": graphs})
    with pytest.raises(InputError, match="export it again with --format mindir,onnx"):
        OnnxBackend(Bundle(path=stories_bundle.path, manifest=manifest))


def changed(graph_file: Path, folder: Path, edit) -> Path:
    model = onnx.load(str(graph_file))
    edit(model)
    file = folder / "changed.onnx"
    file.write_bytes(model.SerializeToString())
    return file


def foreign_operator(model):
    model.graph.node[5].op_type = "NonMaxSuppression"


def custom_domain(model):
    model.graph.node[5].domain = "ai.onnx.contrib"


def own_function(model):
    model.functions.add().name = "mine"


def external_data(model):
    tensor = model.graph.initializer[0]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../secret.bin"


def external_constant(model):
    tensor = onnx.helper.make_tensor("t", onnx.TensorProto.FLOAT, [1], [0.0])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    model.graph.node.append(onnx.helper.make_node("Constant", [], ["c"], value=tensor))


def sub_graph(model):
    attribute = model.graph.node[5].attribute.add()
    attribute.name, attribute.type = "body", onnx.AttributeProto.GRAPH


def sparse_tensor(model):
    model.graph.sparse_initializer.add()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (foreign_operator, "operators outside the allow-list: NonMaxSuppression"),
        (custom_domain, r"custom domain: ai\.onnx\.contrib"),
        (own_function, "functions of its own"),
        (external_data, "parameters outside its file"),
        (external_constant, "parameters outside its file"),
        (sub_graph, "sub-graphs"),
        (sparse_tensor, "sparse tensors"),
        (lambda model: model.graph.ClearField("node"), "not an ONNX graph"),
    ],
)
def test_what_a_decoder_doesnt_need_is_refused(graph_file, tmp_path, edit, message):
    with pytest.raises(InputError, match=message):
        check_onnx(changed(graph_file, tmp_path, edit))


def test_the_exported_graph_passes_and_keeps_no_sample_shapes(graph_file):
    check_onnx(graph_file)
    graph = onnx.load(str(graph_file)).graph
    assert not graph.value_info
    for port in (*graph.input, *graph.output):
        assert [axis.dim_param for axis in port.type.tensor_type.shape.dim] == ["rows", "length"]


@pytest.mark.parametrize("content", [b"", b"not a graph", b"\x08\x07" * 40])
def test_other_files_are_refused(stories_bundle, tmp_path, content):
    copy = tmp_path / "bundle"
    shutil.copytree(stories_bundle.path, copy)
    (copy / stories_bundle.manifest.graphs["score_onnx"].file).write_bytes(content)
    with pytest.raises(InputError, match="not an ONNX graph"):
        OnnxBackend(Bundle(path=copy, manifest=stories_bundle.manifest))


def test_a_graph_that_onnx_runtime_refuses_is_one_line(stories_bundle, graph_file, tmp_path):
    copy = tmp_path / "bundle"
    shutil.copytree(stories_bundle.path, copy)
    file = copy / stories_bundle.manifest.graphs["score_onnx"].file
    shutil.copyfile(changed(graph_file, tmp_path, lambda model: model.graph.ClearField("initializer")), file)
    with pytest.raises(InputError, match="ONNX Runtime can't load this graph") as caught:
        OnnxBackend(Bundle(path=copy, manifest=stories_bundle.manifest))
    assert "\n" not in str(caught.value)
