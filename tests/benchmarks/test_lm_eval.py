"""The same weights and texts through lm-evaluation-harness: the corpus perplexities agree.

Needs an environment of its own with lm-eval, transformers and torch; EVALKIT_PEERS_PYTHON names its Python.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.scoring import LENGTH, PEERS_VARIABLE, cut_texts, own_command, peer_command, run_side
from evalkit.metrics.words import has_cjk
from tests.support.real_models import references


@pytest.fixture(scope="module")
def peer() -> list[str]:
    """The command of the peer's side."""
    python = os.environ.get(PEERS_VARIABLE)
    if python is None or not Path(python).is_file():
        pytest.skip(f"lm-eval isn't here: set {PEERS_VARIABLE} to the Python of its environment")
    return peer_command(python)


@pytest.fixture(scope="module")
def texts(shared_data, stories_bundle) -> list[str]:
    """Stories, short pieces of plays, and texts of several windows; no spaces at their ends."""
    corpus = (shared_data / "corpora" / "en-tinyshakespeare" / "input.txt").read_text(encoding="utf-8")
    stories = [item["text"].strip() for item in references(shared_data, "stories260K")]
    short = cut_texts(corpus, stories_bundle.tokenizer, (20, 60), 1500, 0)
    long = cut_texts(corpus, stories_bundle.tokenizer, (1100, 1300), 3500, 1)
    # Without a segmenter Chinese has no words, so that there would be no perplexity by word.
    return [text for text in (*stories, *short, *long) if text and not has_cjk(text)]


def peer_settings(model: Path, texts: list[str]) -> dict:
    return {
        "model": str(model),
        "texts": texts,
        "length": LENGTH,
        "prefix_token": 1,
        "batch_size": 4,
        "passes": 1,
        "threads": len(os.sched_getaffinity(0)),
        "matmul": (64, 64, 64),
        "memory_limit_mib": 8192,
    }


@pytest.mark.slow
def test_corpus_perplexities_equal_lm_eval(peer, shared_data, stories_bundle, texts, tmp_path):
    found = run_side(peer, peer_settings(shared_data / "models" / "stories260K" / "hf", texts))
    total = sum(found["nll"])
    size = sum(len(text.encode()) for text in texts)
    words = sum(len(text.split()) for text in texts)
    expected = {
        "bits_per_byte": total / size / math.log(2),
        "perplexity/byte": math.exp(total / size),
        "perplexity/word": math.exp(total / words),
    }

    data = tmp_path / "texts.jsonl"
    rows = [json.dumps({"id": str(index), "text": text}) for index, text in enumerate(texts)]
    data.write_text("\n".join(rows) + "\n", encoding="utf-8")
    for backend in ("mindir", "onnx"):
        command = [sys.executable, "-m", "evalkit", "score", "--model", stories_bundle.path, "--data", data]
        options = ["--window", f"{LENGTH}/{LENGTH}/first", "--backend", backend, "--json"]
        done = subprocess.run([*map(str, command), *options], capture_output=True, text=True, check=True)
        metrics = {
            metric["name"]: metric["value"]
            for metric in json.loads(done.stdout)["metrics"]
            if metric["slice"] is None
        }
        for name, value in expected.items():
            assert metrics[name] == pytest.approx(value, rel=1e-4), (backend, name)


@pytest.mark.slow
def test_every_text_equals_lm_eval(peer, shared_data, stories_bundle, texts):
    settings = peer_settings(shared_data / "models" / "stories260K" / "hf", texts)
    found = run_side(peer, settings)
    for backend in ("mindir", "onnx"):
        own = run_side(own_command(), {**settings, "model": str(stories_bundle.path), "backend": backend})
        assert own["tokens"] == found["tokens"]
        assert own["nll"] == pytest.approx(found["nll"], rel=1e-5)
