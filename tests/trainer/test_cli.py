"""The command line, as a user meets it: in a process of its own."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evalkit.bundle import load_bundle
from tests.trainer.fixtures import CONFIG

PROJECT = Path(__file__).resolve().parents[2]


def trainer(*arguments, cwd=None):
    command = [sys.executable, "-m", "trainer", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=cwd, env=environment, check=False
    )


def fails_in_one_line(result, message):
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    *told, last = result.stderr.splitlines()
    assert message in last, result.stderr
    # What was done before is told too: how the data was prepared.
    assert all(line.startswith(("train: ", "validation: ", "warning: ")) for line in told), result.stderr


def test_train_export_generate(training_folder, tiny_export, tmp_path):
    """From the configuration to a text, in three commands; another process makes the same model, bit for bit."""
    run, bundle = tmp_path / "run", tmp_path / "bundle"
    config = tmp_path / "config.yaml"
    names = CONFIG.replace("[train.jsonl]", f"[{training_folder / 'train.jsonl'}]")
    config.write_text(
        names.replace("[validation.jsonl]", f"[{training_folder / 'validation.jsonl'}]") + "out: run\n"
    )
    trained = trainer("train", config, cwd="/")
    assert trained.returncode == 0, trained.stderr
    assert trained.stdout.splitlines()[-1] == f"checkpoint: {run}/checkpoints/step-12"
    assert "step 12/12  loss " in trained.stderr and "tokens/s" in trained.stderr
    exported = trainer(
        "export", run / "checkpoints" / "step-12", "--out", bundle, "--name", "tiny-b", "--json"
    )
    assert exported.returncode == 0, exported.stderr
    report = json.loads(exported.stdout)
    assert (
        report["model_digest"] == load_bundle(bundle).model_digest and report["max_abs_logprob_diff"] < 1e-4
    )
    assert load_bundle(bundle).manifest.name == "tiny-b"
    generated = trainer(
        "generate", bundle, "--prompt", "I am Tom from Bonn.", "--chat", "--max-new-tokens", 5, "--json"
    )
    assert generated.returncode == 0, generated.stderr
    assert set(json.loads(generated.stdout)) == {"text", "token_ids", "prompt_token_ids", "finish_reason"}


def test_help_is_quick_and_loads_no_mindspore():
    began = time.monotonic()
    code = "import sys, runpy; sys.argv = ['trainer', '--help']\ntry:\n runpy.run_module('trainer', run_name='__main__')\nexcept SystemExit: pass\n"
    result = subprocess.run(
        [sys.executable, "-c", code + "assert 'mindspore' not in sys.modules"],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "train" in result.stdout and "export" in result.stdout and "generate" in result.stdout
    assert time.monotonic() - began < 5  # the measured figure is far below; this only catches an accident


def test_missing_and_broken_inputs(tmp_path):
    (tmp_path / "broken.yaml").write_text("version: [1\n")
    (tmp_path / "binary.yaml").write_bytes(b"\x00\xff\xfe")
    (tmp_path / "doubled.yaml").write_text(CONFIG + "steps: 5\n")
    (tmp_path / "no_data.yaml").write_text(CONFIG + "out: run\n")
    (tmp_path / "no_out.yaml").write_text(CONFIG)
    fails_in_one_line(trainer("train", tmp_path / "none.yaml"), "none.yaml: no such file")
    fails_in_one_line(trainer("train", tmp_path / "broken.yaml"), "broken.yaml:2: broken YAML")
    fails_in_one_line(trainer("train", tmp_path / "binary.yaml"), "not UTF-8")
    fails_in_one_line(trainer("train", tmp_path / "doubled.yaml"), "steps: key given twice")
    fails_in_one_line(trainer("train", tmp_path / "no_out.yaml"), "names no run folder")
    fails_in_one_line(trainer("train", tmp_path / "no_data.yaml"), "train.jsonl: no such file")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("heads: 4, kv_heads: 2", "heads: 3", "hidden_size 16 isn't a multiple of heads 3"),
        ("layers: 2", "layers: 1000000", "layers: "),
        ("hidden_size: 16, layers: 2", "hidden_size: 1048576, layers: 1000", "this machine has"),
        (
            "max_length: 64",
            "max_length: 64, vocab_size: 512",
            "model.vocab_size: 512, but the tokenizer has 300 tokens",
        ),
        ("seed: 7", "seed: 123456789012345678901234567890", "seed: "),
        ("batch_size: 4", "batch_size: 10000000000", "batch_size 10000000000 rows of 48 positions"),
        ("train: [train.jsonl]", "train: [missing.jsonl]", "missing.jsonl: no such file"),
        ("level: O0", "level: O2, dtype: bfloat16", "bfloat16 has no kernels on a CPU"),
        ("steps: 12", "steps: 12\nparallel: {data: 2}", "need 2 processes, 1 was started; use `msrun"),
        ("steps: 12", "steps: 12\ncallbacks: [nowhere:Thing]", "no module 'nowhere'"),
        ("every: 6,", "every: 6, scenario: s.yaml,", "s.yaml: "),
    ],
)
def test_wrong_configurations_are_one_line(training_folder, tmp_path, old, new, message):
    assert old in CONFIG
    for name in ("train.jsonl", "validation.jsonl"):
        (tmp_path / name).write_bytes((training_folder / name).read_bytes())
    (tmp_path / "config.yaml").write_text(CONFIG.replace(old, new))
    fails_in_one_line(trainer("train", tmp_path / "config.yaml", "--out", tmp_path / "run"), message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("export", "none", "--out", "b"), "none: no such checkpoint folder"),
        (("export", ".", "--out", "b"), "neither a checkpoint nor a run"),
        (("generate", "none", "--prompt", "a"), "none: no such checkpoint folder"),
        (("generate", "none", "--prompt", "a", "--top-p", "0"), "--top-p"),
        (("export", "none", "--out", "b", "--static", "8"), "--static 8: give ROWSxLENGTH, as in 8x256"),
        (("export", "none", "--out", "b", "--parity-tolerance", "nan"), "none: no such checkpoint folder"),
        (("generate", "none", "--prompt", "a", "--backend", "tvm"), "--backend"),
        (("convert", "none", "--out", "b", "--to", "gguf"), "--to"),
        (("train",), "CONFIG"),
        (("tune",), "tune"),
    ],
)
def test_wrong_usage(arguments, message, tmp_path):
    fails_in_one_line(trainer(*arguments, cwd=tmp_path), message)


def test_air_and_unknown_formats_are_refused(tiny_run, tmp_path):
    fails_in_one_line(
        trainer("export", tiny_run, "--out", tmp_path / "b", "--format", "air"),
        "only be exported on an Ascend",
    )
    fails_in_one_line(
        trainer("export", tiny_run, "--out", tmp_path / "b", "--format", "mindir,pickle"),
        "choose from mindir, onnx",
    )
    fails_in_one_line(
        trainer("export", tiny_run, "--out", tmp_path / "b", "--parity-tolerance", "nan"),
        "a finite number is needed",
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_leads_nowhere(tmp_path, closed):
    """It ended as a fault of ours, and a file that was opened next would have got the output."""
    (tmp_path / "plan.yaml").write_text(
        "version: 1\nmodel: {hidden_size: 64, layers: 4, heads: 4, intermediate_size: 128, vocab_size: 512}\n"
        "training: {sequence_length: 128}\ndevice: {memory_gib: 0.001}\n"
    )
    command = f"{sys.executable} -m trainer memory plan.yaml --out out {closed}"
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(PROJECT)}, check=False
    )
    assert done.returncode == 1  # doesn't fit
    assert json.loads((tmp_path / "out" / "memory.json").read_bytes())["verdict"] == "doesn't fit"
