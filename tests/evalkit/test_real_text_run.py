"""`evalkit run` on real text: banking dialogues of the SGD corpus, scored and replayed turn by turn."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evalkit.runs.evidence_io import read_evidence
from evalkit.runs.folder import RunFolder
from tests.support.sgd import convert, write_training_data

DIALOGUES = 6

TRAINING = """\
version: 1
name: sgd_tiny
seed: 3
model: {family: llama, hidden_size: 32, layers: 2, heads: 2, max_length: 256}
tokenizer: {train: {vocab_size: 400}}
data: {train: [train.jsonl], validation: [validation.jsonl], loss_on: all, sequence_length: 128}
optimizer: {name: adamw, learning_rate: 3.0e-3, schedule: cosine, warmup_steps: 5}
steps: 30
batch_size: 4
"""


def command(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *[str(word) for word in words]], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def run_folder(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a small model that was trained for a moment on other dialogues of the corpus."""
    source = shared_data / "dialogues" / "sgd_banks_payment"
    folder = tmp_path_factory.mktemp("sgd")
    write_training_data(source, folder / "training", DIALOGUES)
    (folder / "training" / "train.yaml").write_text(TRAINING)
    scenario = convert(source, folder / "scenario", DIALOGUES)
    for words in (
        ("trainer", "train", folder / "training" / "train.yaml", "--out", folder / "model"),
        ("trainer", "export", folder / "model", "--out", folder / "bundle"),
        ("evalkit", "run", scenario, "--model", folder / "bundle", "--out", folder / "run"),
    ):
        done = command(*words)
        assert done.returncode == 0, f"{words}: {done.stderr[-2000:]}"
    lines = done.stdout.splitlines()
    assert lines[-2] == "verdict: NOT JUDGED" and lines[-1].startswith("report: ")
    return folder / "run"


@pytest.fixture(scope="module")
def results(run_folder: Path) -> dict[str, Any]:
    """results.json."""
    content: dict[str, Any] = json.loads((run_folder / "results.json").read_text())
    return content


def test_every_metric_is_finite_or_null_with_a_reason(results: dict[str, Any]) -> None:
    assert len(results["metrics"]) > 20
    for metric in results["metrics"]:
        if metric["value"] is None:
            assert metric["reason"]
        else:
            assert metric["reason"] is None and math.isfinite(metric["value"])


def test_class_token_counts_add_up_to_the_total(results: dict[str, Any]) -> None:
    tokens = {metric["name"]: metric["n"] for metric in results["metrics"] if metric["slice"] is None}
    classes = ("head", "middle", "long_tail", "oov", "domain", "other")
    parts = [tokens.get(f"perplexity/{name}", 0) for name in classes]
    assert sum(parts) == tokens["perplexity/token"] > 1000
    assert sum(part > 0 for part in parts) >= 4
    conservation = results["conservation"]
    assert conservation["tokens_scored"] == tokens["perplexity/token"]
    assert (
        conservation["tokens_encoded"] == conservation["tokens_scored"] + conservation["tokens_unconditioned"]
    )
    assert conservation["bytes"] == conservation["bytes_scored"]


def test_every_planned_turn_was_replayed_once(run_folder: Path, results: dict[str, Any]) -> None:
    turns = read_evidence(RunFolder(run_folder), "candidate").turns
    by_dialogue: dict[str, list[int]] = {}
    for turn in turns:
        by_dialogue.setdefault(turn.dialogue_id, []).append(turn.turn_index)
        assert turn.status in ("ok", "model_fault"), turn.reason
    assert len(by_dialogue) == DIALOGUES
    assert all(indices == list(range(len(indices))) for indices in by_dialogue.values())
    passed = next(metric for metric in results["metrics"] if metric["name"] == "dialogue/pass_hat_k")
    assert (passed["k"], passed["n"], passed["coverage"]) == (1, DIALOGUES, 1.0)
    timed = next(metric for metric in results["metrics"] if metric["name"] == "latency/first_token")
    # A model that answers with silence has no latency: each of its turns failed.
    silent = sum(turn.status == "model_fault" for turn in turns)
    assert timed["n"] == len(turns) and timed["failed_turns"] == silent
    assert (timed["value"] is None) == (silent >= len(turns) / 2)
