"""Raw logits on request: a graph of their own in both formats, kept in the run, equal to what was scored."""

import json
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.special import log_softmax

from evalkit.backends.raw_logits import logits_file, open_logits
from evalkit.errors import InputError
from evalkit.runs.folder import RunFolder
from evalkit.scoring import raw_logits
from trainer.checkpoint import read_checkpoint
from trainer.export.bundle import export_bundle

# A text longer than the window, one of few tokens, an equal one, one that can't be scored, one in two languages.
TEXTS = ["I am Maria from Bonn. " * 6, "Hello Tom", "Hello Tom", "", "Wei 住在 Bern，账号 63。😀"]


@pytest.fixture(scope="module")
def bundle(tiny_run, tmp_path_factory):
    pytest.importorskip("onnx", reason='pip install "evalkit[onnx]"')
    out = tmp_path_factory.mktemp("logits") / "bundle"
    return export_bundle(read_checkpoint(tiny_run), out, formats=["mindir", "onnx"], logits=True)


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text(
        "".join(json.dumps({"id": f"t{index}", "text": text}) + "\n" for index, text in enumerate(TEXTS))
    )
    return path


def evalkit(*words):
    command = [sys.executable, "-m", "evalkit", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


@pytest.mark.parametrize(
    ("backend", "window"), [("mindir", "64/64/first"), ("mindir", "32/16/none"), ("onnx", "32/8/every")]
)
def test_log_softmax_of_the_kept_logits_is_what_was_scored(bundle, data, tmp_path, backend, window):
    words = ("--model", bundle.path, "--data", data, "--out", tmp_path / "run", "--backend", backend)
    done = evalkit("score", *words, "--window", window, "--tokens", "--logits")
    assert done.returncode == 0, done.stderr
    folder = RunFolder(tmp_path / "run")
    tokens, logits = (pq.read_table(path("candidate")).to_pandas() for path in (folder.tokens, folder.logits))
    assert list(logits.columns) == ["sample_id", "index", "token_id", "logits"]
    for column in ("sample_id", "index", "token_id"):
        assert (logits[column] == tokens[column]).all(), column
    raw = np.stack(logits["logits"].to_numpy())
    assert raw.shape == (len(tokens), bundle.model.vocab_size) and raw.dtype == np.float32
    logprobs = log_softmax(raw.astype(np.float64), axis=1)
    at_target = logprobs[np.arange(len(tokens)), tokens["token_id"]]
    assert np.abs(at_target - tokens["logprob"]).max() < 1e-5
    assert np.abs(-(np.exp(logprobs) * logprobs).sum(1) - tokens["entropy"]).max() < 1e-4
    rank = 1 + (raw > raw[np.arange(len(tokens)), tokens["token_id"]][:, None]).sum(1)
    # Where rows of another shape move a logit by an ulp, a near-tie may change places.
    assert (rank != tokens["rank"]).mean() < 0.01
    assert evalkit("verify", folder.path).returncode == 0
    sealed = json.loads(folder.seal.read_text())["files"]
    assert "evidence/candidate/logits.parquet" in sealed
    path = folder.logits("candidate")
    path.write_bytes(path.read_bytes()[:-1])
    broken = evalkit("verify", folder.path)
    assert broken.returncode == 1 and "logits.parquet" in broken.stdout


def test_the_manifest_names_the_role_and_its_parity(bundle):
    graphs, parity = bundle.manifest.graphs, bundle.manifest.parity
    for role, kind in (("logits", "mindir"), ("logits_onnx", "onnx")):
        assert graphs[role].format == kind
        assert [port.name for port in graphs[role].inputs] == ["token_ids", "positions", "segments"]
        assert graphs[role].outputs[0].shape == [None, None, bundle.model.vocab_size]
        assert parity[role].max_abs_logprob_diff < 1e-4
        assert parity[role].tokens == parity["score"].tokens


def test_packed_segments_do_not_see_each_other(bundle):
    generator = np.random.default_rng(0)
    ids = generator.integers(0, bundle.model.vocab_size, (1, 12)).astype(np.int32)
    places = np.r_[np.arange(5), np.arange(7)].astype(np.int32)[None]
    segments = np.r_[np.ones(5), np.full(7, 2)].astype(np.int32)[None]
    alone = (ids[:, 5:].copy(), places[:, 5:].copy(), np.ones((1, 7), np.int32))
    for name in ("mindir", "onnx"):
        run = open_logits(logits_file(name, bundle))
        assert run(ids, places, segments)[0, 5:] == pytest.approx(run(*alone)[0], abs=1e-5)


def test_a_bundle_without_the_graph_is_refused_before_anything_is_measured(tiny_export, data, tmp_path):
    done = evalkit("score", "--model", tiny_export, "--data", data, "--out", tmp_path / "run", "--logits")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "has no graph of raw logits for --backend mindir" in done.stderr
    assert "trainer export CKPT --format mindir --logits" in done.stderr
    assert not (tmp_path / "run").exists()
    without = evalkit("score", "--model", tiny_export, "--data", data, "--logits")
    assert without.returncode == 2 and "add --out RUN" in without.stderr


def test_too_much_is_refused_with_the_limit(bundle, data, monkeypatch):
    from evalkit.scenario.schema import Window
    from evalkit.scoring.texts import read_texts

    items, size = read_texts(data), bundle.model.vocab_size
    asked = (items, bundle.tokenizer, Window(length=64, stride=64), size)
    raw_logits.check_logits_size(*asked)
    tokens = sum(len(bundle.tokenizer.encode(text).ids) for text in TEXTS if text)
    monkeypatch.setattr(raw_logits, "MAX_LOGITS_BYTES", 4 * size * tokens)
    raw_logits.check_logits_size(*asked)
    monkeypatch.setattr(raw_logits, "MAX_LOGITS_BYTES", 4 * size * tokens - 1)
    with pytest.raises(
        InputError, match=rf"--logits: {tokens} tokens .* give texts of at most {tokens - 1} tokens"
    ):
        raw_logits.check_logits_size(*asked)
