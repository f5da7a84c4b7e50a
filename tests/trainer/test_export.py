"""Export: the bundle, its parity, and what is refused."""

import json
import shutil
import stat

import numpy as np
import pytest

from evalkit.bundle import load_bundle
from evalkit.errors import InputError
from evalkit.operators import check_operators, graph_operators
from tests.trainer.models import packed_rows, random_model, small_spec, tensors, weights_of
from tests.trainer.reference import forward, log_softmax
from trainer.checkpoint import read_checkpoint
from trainer.export.bundle import export_bundle
from trainer.export.graphs import ScoreGraph, StepGraph, export_mindir, load_mindir, score_ports, step_ports
from trainer.export.options import Bucket, ExportOptions
from trainer.export.parity import compare


def test_the_bundle_is_complete_and_verified(tiny_export, tiny_run):
    bundle = load_bundle(tiny_export)
    checkpoint = read_checkpoint(tiny_run)
    assert set(bundle.manifest.graphs) == {"score", "prefill", "decode"}
    assert bundle.manifest.graphs["prefill"] == bundle.manifest.graphs["decode"]
    assert bundle.manifest.training["steps"] == 12 and bundle.manifest.name == "tiny"
    assert bundle.tokenizer.prefix_token == 1 and bundle.tokenizer.end_token == 2
    assert bundle.token_counts.shape == (bundle.model.vocab_size,) and bundle.word_counts["Maria"] > 0
    score, decode = bundle.manifest.parity["score"], bundle.manifest.parity["decode"]
    assert score.tokens == checkpoint.probe.tokens and score.max_abs_logprob_diff < 1e-5
    assert decode.tokens > 20 and decode.max_abs_logprob_diff < 1e-4


def test_files_are_readable_by_everyone_and_writable_by_the_owner(tiny_export):
    for path in tiny_export.rglob("*"):
        mode = path.stat().st_mode
        assert mode & stat.S_IWUSR and mode & stat.S_IRUSR, path
        assert mode & stat.S_IXUSR or path.is_file()


def test_a_cut_window_is_another_model(tiny_export, tiny_run, tmp_path):
    checkpoint = read_checkpoint(tiny_run)
    whole, cut = (
        load_bundle(tiny_export),
        export_bundle(checkpoint, tmp_path / "cut", attention_window=4, name="cut"),
    )
    assert cut.manifest.name == "cut" and cut.model_digest != whole.model_digest
    assert cut.model.attention_window == 4 and cut.model.max_length == whole.model.max_length
    assert cut.manifest.files["weights.safetensors"] == whole.manifest.files["weights.safetensors"]
    ports = score_ports()[0]
    probe = checkpoint.probe
    rows = tensors(probe.token_ids, probe.targets, probe.positions, probe.segments)
    long, short = (
        load_mindir(bundle.graph_file("score"), ports)(*rows)[0].asnumpy() for bundle in (whole, cut)
    )
    near, far = (probe.segments > 0) & (probe.positions < 4), (probe.segments > 0) & (probe.positions >= 8)
    assert np.abs(long - short)[near].max() < 1e-5 < np.abs(long - short)[far].max()


@pytest.mark.parametrize("name", ["llama-grouped-untied-window", "gpt2"])
def test_score_graph_equals_the_reference(name, tmp_path):
    spec = small_spec(name)
    model = random_model(spec)
    file, ports = tmp_path / "score.mindir", score_ports()[0]
    export_mindir(ScoreGraph(model, spec), ports, file)
    token_ids, targets, positions, segments = packed_rows()
    outputs = load_mindir(file, ports)(*tensors(token_ids, targets, positions, segments))
    logprob, entropy, margin, rank, top_id = (output.asnumpy() for output in outputs)
    logits = forward(spec, weights_of(model), token_ids, positions, segments)
    expected = log_softmax(logits)
    real = segments > 0
    at_target = np.take_along_axis(expected, targets[..., None], -1)
    others = np.where(np.arange(expected.shape[-1]) == targets[..., None], -np.inf, expected).max(-1)
    assert np.abs(logprob - at_target[..., 0])[real].max() < 2e-4
    assert np.abs(entropy + (np.exp(expected) * expected).sum(-1))[real].max() < 2e-4
    assert np.abs(margin - (at_target[..., 0] - others))[real].max() < 4e-4
    assert (rank == 1 + (expected > at_target).sum(-1))[real].all() and rank.dtype == np.int32
    assert (top_id == expected.argmax(-1))[real].all() and top_id.dtype == np.int32
    check_operators(file)
    assert not {"Rsqrt", "Erf"} & graph_operators(file)  # the ONNX exporter doesn't know them


@pytest.mark.parametrize("name", ["llama-grouped-untied-window", "gpt2-window", "mixed"])
def test_step_graph_equals_teacher_forcing(name, tmp_path):
    """Two texts of different length: padded prefill, then two tokens a step, with empty slots in the cache."""
    spec = small_spec(name)
    model = random_model(spec)
    file, ports = tmp_path / "step.mindir", step_ports(spec)[0]
    export_mindir(StepGraph(model, spec), ports, file)
    check_operators(file)
    graph = load_mindir(file, ports)
    token_ids = np.random.default_rng(5).integers(0, spec.vocab_size, (2, 9)).astype(np.int32)
    positions = np.tile(np.arange(9, dtype=np.int32), (2, 1))
    expected = forward(spec, weights_of(model), token_ids, positions, np.ones_like(positions))

    prompt = np.where(positions[:, :5] < [[5], [3]], positions[:, :5], -1).astype(np.int32)
    cache = [np.zeros((2, spec.kv_heads, 0, spec.head_size), np.float32)] * (2 * spec.layers)
    last = np.array([4, 2], np.int32)
    empty = np.zeros((2, 0), np.int32)
    logits, *cache = (o.asnumpy() for o in graph(*tensors(token_ids[:, :5], prompt, empty, last, *cache)))
    assert np.abs(logits - expected[[0, 1], [4, 2]]).max() < 2e-4

    now = np.array([[5, 6], [3, 4]], np.int32)
    ids = np.take_along_axis(token_ids, now, 1)
    logits, *new = (
        o.asnumpy() for o in graph(*tensors(ids, now, prompt, np.array([1, 0], np.int32), *cache))
    )
    assert np.abs(logits - expected[[0, 1], [6, 3]]).max() < 2e-4
    assert new[0].shape == (2, spec.kv_heads, 2, spec.head_size)


def test_parity_that_is_too_far_off_is_refused():
    near = np.zeros((2, 3), np.float32)
    where = np.array([[True, True, False]] * 2)
    assert compare("score", near, near + np.float32(1e-4), where, 1e-3).max_abs_logprob_diff == pytest.approx(
        1e-4
    )
    for wrong in (near + np.float32(0.01), near * np.nan):
        with pytest.raises(InputError, match="differ from the checkpoint's"):
            compare("score", near, wrong, where, 1e-3)
    with pytest.raises(InputError, match="by nan nats"):
        compare("score", near, near * np.nan, where, 1e9)
    assert compare("score", near, near + np.float32(0.01), where, 0.1).max_abs_logprob_diff > 1e-3
    assert compare("score", near, np.where(where, near, np.float32(9)), where, 1e-3).tokens == 4


def test_air_needs_an_ascend_device(tiny_run, tmp_path):
    with pytest.raises(InputError, match="AIR can only be exported on an Ascend device"):
        export_bundle(read_checkpoint(tiny_run), tmp_path / "air", formats=["mindir", "air"])
    assert not (tmp_path / "air").exists()


def test_graphs_that_mindspore_would_split_are_refused():
    spec = small_spec("llama").model_copy(update={"parameters": 1_100_000_000})
    with pytest.raises(InputError, match=r"4\.1 GiB of weights: a bundle holds graphs of up to 1 GiB"):
        ExportOptions(("mindir",), (), 1e-3).check(spec)


def test_an_existing_folder_is_left_alone(tiny_export, tiny_run):
    with pytest.raises(InputError, match="exists already"):
        export_bundle(read_checkpoint(tiny_run), tiny_export)


def test_a_failed_export_leaves_nothing(tiny_run, tmp_path):
    """No decode graph is exact to the last bit: a tolerance of nothing refuses a real one."""
    with pytest.raises(InputError, match=r"graph \w+: its log-probabilities differ .* nothing was written"):
        export_bundle(read_checkpoint(tiny_run), tmp_path / "bundle", tolerance=0.0)
    assert list(tmp_path.iterdir()) == []


def test_static_shapes_stand_beside_the_dynamic_graphs(tiny_run, tiny_export, tmp_path):
    """A shape narrower and one wider than the probe's rows: both are filled up or cut, and measured."""
    buckets = [Bucket(3, 20), Bucket(2, 64)]
    bundle = export_bundle(read_checkpoint(tiny_run), tmp_path / "b", buckets=buckets)
    assert bundle.model_digest == load_bundle(tiny_export).model_digest
    graphs, parity = bundle.manifest.graphs, bundle.manifest.parity
    assert set(parity) == {
        "score",
        "decode",
        *(f"{role}_{b}" for role in ("score", "decode") for b in buckets),
    }
    assert max(result.max_abs_logprob_diff for result in parity.values()) < 1e-4
    assert parity["score_2x64"].tokens == parity["score"].tokens > parity["score_3x20"].tokens > 20
    assert all(size is not None for port in graphs["decode_3x20"].inputs for size in port.shape)
    shapes = {port.name: port.shape for port in graphs["decode_3x20"].inputs}
    assert (
        shapes["token_ids"] == [3, 1] and shapes["past_positions"] == [3, 20] and shapes["last_index"] == [3]
    )
    assert shapes["past_key_0"] == [3, 2, 20, 4]
    shapes = {
        port.name: port.shape for port in graphs["prefill_2x64"].inputs + graphs["prefill_2x64"].outputs
    }
    assert shapes["token_ids"] == [2, 64] and shapes["past_key_1"] == [2, 2, 1, 4]
    assert shapes["key_1"] == [2, 2, 64, 4] and shapes["logits"] == [2, bundle.model.vocab_size]
    check_operators(bundle.graph_file("score_3x20"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8", "give ROWSxLENGTH"),
        ("0x8", "give ROWSxLENGTH"),
        ("8x-1", "give ROWSxLENGTH"),
        ("8,8", "as in 8x256"),
    ],
)
def test_static_shapes_that_are_none(text, message):
    with pytest.raises(InputError, match=message):
        Bucket.parse(text)


def test_static_shapes_that_dont_fit(tiny_run, tmp_path):
    for buckets, message in (
        ([Bucket(1, 65)], "--static 1x65: the length must lie between 2 and the model's max_length 64"),
        ([Bucket(1, 1)], "--static 1x1"),
        ([Bucket(2, 8), Bucket(2, 8)], "given twice"),
    ):
        with pytest.raises(InputError, match=message):
            export_bundle(read_checkpoint(tiny_run), tmp_path / "b", buckets=buckets)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "file", ["weights.safetensors", "graphs/score.mindir", "tokenizer.json", "word_counts.tsv.gz"]
)
def test_one_flipped_byte_in_a_bundle_is_refused(tiny_export, tmp_path, file):
    copy = tmp_path / "copy"
    shutil.copytree(tiny_export, copy)
    _flip(copy / file)
    with pytest.raises(InputError, match="corrupt"):
        load_bundle(copy)


@pytest.mark.parametrize("file", ["weights.safetensors", "probe.npz", "tokenizer.json"])
def test_one_flipped_byte_in_a_checkpoint_is_refused(tiny_run, tmp_path, file):
    copy = tmp_path / "copy"
    shutil.copytree(read_checkpoint(tiny_run).path, copy)
    _flip(copy / file)
    with pytest.raises(InputError, match=r"corrupt, take another one"):
        read_checkpoint(copy)


def test_broken_checkpoint_descriptions_are_refused(tiny_run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(read_checkpoint(tiny_run).path, copy)
    meta = json.loads((copy / "checkpoint.json").read_text())
    for text, message in (
        ("{", "broken JSON"),
        (json.dumps({**meta, "model": {}}), "checkpoint.json: model.family"),
    ):
        (copy / "checkpoint.json").write_text(text)
        with pytest.raises(InputError, match=message):
            read_checkpoint(copy)
    with pytest.raises(InputError, match="neither a checkpoint nor a run"):
        read_checkpoint(tmp_path)


def _flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
