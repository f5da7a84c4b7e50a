"""ONNX export: every family, any shape, and what is refused."""

import numpy as np
import pytest
from mindspore import Tensor

from evalkit.backends.onnx_session import open_session
from evalkit.errors import InputError
from tests.trainer.models import FAMILIES, VOCAB, packed_rows, random_model, small_spec, weights_of
from tests.trainer.reference import forward, log_softmax
from trainer.checkpoint import read_checkpoint
from trainer.export import onnx_score
from trainer.export.bundle import export_bundle
from trainer.export.graphs import score_ports
from trainer.export.onnx import export_onnx

pytest.importorskip("onnx", reason='pip install "evalkit[onnx]"')

NAMES = ("token_ids", "targets", "positions", "segments")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_graph_equals_the_reference_for_any_shape(family, tmp_path):
    spec = small_spec(family)
    model = random_model(spec)
    export_onnx("score", model, spec, *score_ports(), tmp_path / "score.onnx")
    session = open_session(tmp_path / "score.onnx")
    whole = packed_rows()
    for rows in (whole, *([field[:2, :length].copy() for field in whole] for length in (9, 5, 4, 3, 2, 1))):
        logprob, *_, top_id = session.run(None, dict(zip(NAMES, rows, strict=True)))
        token_ids, targets, positions, segments = rows
        expected = log_softmax(forward(spec, weights_of(model), token_ids, positions, segments))
        real = segments > 0
        at_target = np.take_along_axis(expected, targets[..., None], -1)[..., 0]
        assert np.abs(logprob - at_target)[real].max() < 2e-4
        assert (top_id == expected.argmax(-1))[real].all()


def test_statistics_taken_in_blocks_of_rows_are_the_same(tmp_path, monkeypatch):
    """A large vocabulary is scored a few rows at a time; here so that some blocks are empty."""
    spec = small_spec("llama")
    model = random_model(spec)
    whole = [field[:1, :5].copy() for field in packed_rows()]
    results = []
    for logits in (1 << 21, 512 * VOCAB // 7):
        monkeypatch.setattr(onnx_score, "_BLOCK_LOGITS", logits)
        file = tmp_path / f"score_{logits}.onnx"
        export_onnx("score", model, spec, *score_ports(), file)
        results.append(open_session(file).run(None, dict(zip(NAMES, whole, strict=True))))
    for one, other in zip(*results, strict=True):
        assert np.abs(one.astype(np.float64) - other).max() < 1e-5


def test_ties_are_told_as_the_scoring_head_tells_them(tmp_path):
    """Two equal largest logits: the margin is 0 whichever is asked, the first one is the most probable, both rank 1."""
    spec = small_spec("llama")
    model = random_model(spec)
    table = model.model.embed_tokens.weight
    values = table.asnumpy().copy()
    token_ids, _, positions, segments = (field[:1].copy() for field in packed_rows())
    logits = forward(spec, weights_of(model), token_ids, positions, segments)[0, -1]
    best = int(logits.argmax())
    twin = (best + 7) % VOCAB
    assert best not in token_ids and twin not in token_ids
    values[twin] = values[best]
    table.set_data(Tensor(values))
    export_onnx("score", model, spec, *score_ports(), tmp_path / "score.onnx")
    session = open_session(tmp_path / "score.onnx")
    for asked in (best, twin):
        targets = np.full_like(token_ids, asked)
        rows = (token_ids, targets, positions, segments)
        _, _, margin, rank, top_id = session.run(None, dict(zip(NAMES, rows, strict=True)))
        assert (margin[0, -1], rank[0, -1], top_id[0, -1]) == (0, 1, min(best, twin))


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
