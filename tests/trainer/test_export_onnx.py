"""ONNX export: every family, any shape, and what is refused."""

import numpy as np
import pytest

from evalkit.backends.onnx_session import open_session
from evalkit.errors import InputError
from tests.trainer.models import FAMILIES, VOCAB, packed_rows, random_model, small_spec, weights_of
from tests.trainer.reference import forward, log_softmax
from trainer.checkpoint import read_checkpoint
from trainer.export.bundle import export_bundle
from trainer.export.graphs import ScoreGraph, score_ports
from trainer.export.onnx import export_onnx, sample_sizes

pytest.importorskip("onnx", reason='pip install "evalkit[onnx]"')

NAMES = ("token_ids", "targets", "positions", "segments")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_graph_equals_the_reference_for_any_shape(family, tmp_path):
    spec = small_spec(family)
    model = random_model(spec)
    export_onnx(ScoreGraph(model, spec), spec, *score_ports(), tmp_path / "score.onnx")
    session = open_session(tmp_path / "score.onnx")
    whole = packed_rows()
    for rows in (whole, [field[:1, :9].copy() for field in whole], [field[1:, :1].copy() for field in whole]):
        logprob, *_, top_id = session.run(None, dict(zip(NAMES, rows, strict=True)))
        token_ids, targets, positions, segments = rows
        expected = log_softmax(forward(spec, weights_of(model), token_ids, positions, segments))
        real = segments > 0
        at_target = np.take_along_axis(expected, targets[..., None], -1)[..., 0]
        assert np.abs(logprob - at_target)[real].max() < 2e-4
        assert (top_id == expected.argmax(-1))[real].all()


def test_sample_sizes_occur_in_no_size_of_the_model():
    spec = small_spec("llama").model_copy(update={"hidden_size": 5 * 7 * 11 * 2, "heads": 2, "kv_heads": 1})
    assert spec.vocab_size == VOCAB and sample_sizes(spec) == (13, 17)
    with pytest.raises(InputError, match="max_length is too small"):
        sample_sizes(spec.model_copy(update={"max_length": 8}))


def test_the_bundle_holds_both_and_stores_the_parity(tiny_run, tiny_export, tmp_path):
    bundle = export_bundle(read_checkpoint(tiny_run), tmp_path / "b", formats=["mindir", "onnx"])
    assert bundle.manifest.graphs["score_onnx"].format == "onnx"
    assert bundle.manifest.graphs["prefill_onnx"] == bundle.manifest.graphs["decode_onnx"]
    assert bundle.manifest.graphs["decode_onnx"].inputs == bundle.manifest.graphs["decode"].inputs
    assert bundle.manifest.parity["decode_onnx"].tokens == bundle.manifest.parity["decode"].tokens
    assert bundle.manifest.parity["decode_onnx"].max_abs_logprob_diff < 1e-4
    assert bundle.manifest.parity["score_onnx"].max_abs_logprob_diff < 1e-4
    assert bundle.manifest.parity["score_onnx"].tokens == bundle.manifest.parity["score"].tokens
    plain = export_bundle(read_checkpoint(tiny_run), tmp_path / "plain")
    assert bundle.model_digest == plain.model_digest and "score_onnx" not in plain.manifest.graphs


@pytest.mark.parametrize(
    ("formats", "message"),
    [
        (["onnx"], "needs its MindIR graphs; use mindir,onnx"),
        (["mindir", "tflite"], "tflite: unknown; choose from mindir, onnx, air"),
    ],
)
def test_formats_that_make_no_bundle(tiny_run, tmp_path, formats, message):
    with pytest.raises(InputError, match=message):
        export_bundle(read_checkpoint(tiny_run), tmp_path / "b", formats=formats)


def test_without_the_packages_the_command_says_what_to_install(tiny_run, tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.export.onnx.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs the package onnx; pip install \"evalkit\[onnx\]\""):
        export_bundle(read_checkpoint(tiny_run), tmp_path / "b", formats=["mindir", "onnx"])
    assert not (tmp_path / "b").exists()
