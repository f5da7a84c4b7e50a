"""`trainer convert` and `evalkit score --backend` as a user meets them."""

import json
import subprocess
import sys

import pytest


def command(*words):
    return subprocess.run(
        [sys.executable, "-m", *map(str, words)], capture_output=True, text=True, timeout=300, check=False
    )


def test_convert_then_read_again(shared_data, tmp_path):
    from trainer.checkpoint import read_checkpoint

    source, out = shared_data / "models" / "stories260K" / "hf", tmp_path / "ck"
    done = command("trainer", "convert", source, "--out", out, "--name", "stories", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"checkpoint": str(out), "parameters": 260032}
    meta = read_checkpoint(out).meta
    assert meta.name == "stories" and meta.config["converted_from"]["format"] == "Hugging Face Llama"
    assert "token_counts.npz" not in meta.files


@pytest.mark.parametrize(
    ("name", "message"), [("absent", "no such file or folder"), ("m.bin", "only llama2.c")]
)
def test_bad_sources_exit_2_in_one_line(tmp_path, name, message):
    (tmp_path / "m.bin").write_bytes(b"x")
    done = command("trainer", "convert", tmp_path / name, "--out", tmp_path / "out")
    lines = done.stderr.splitlines()
    assert done.returncode == 2 and len(lines) == 1 and message in lines[0], done.stderr
    assert not (tmp_path / "out").exists()


def test_score_with_onnx_keeps_the_backend_in_the_plan(stories_bundle, tmp_path):
    (tmp_path / "t.jsonl").write_text('{"id": "a", "text": "Once upon a time"}\n')
    values = {}
    for backend in ("mindir", "onnx"):
        run = tmp_path / backend
        words = ("--model", stories_bundle.path, "--data", tmp_path / "t.jsonl", "--out", run)
        done = command("evalkit", "score", *words, "--backend", backend, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads((run / "plan.json").read_text())["backend"]["name"] == backend
        metrics = {metric["name"]: metric["value"] for metric in json.loads(done.stdout)["metrics"]}
        values[backend] = metrics["perplexity/token"]
    assert values["mindir"] == pytest.approx(values["onnx"], rel=1e-5)
    assert command("evalkit", "verify", tmp_path / "onnx").returncode == 0
