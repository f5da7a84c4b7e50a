"""Recomputation, replicas under msrun, and what is refused."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from evalkit.errors import InputError
from tests.trainer.killed import write_config
from tests.trainer.small_training import SmallTraining, read_lines
from trainer.checkpoint import step_folder
from trainer.configuration.parallel import ParallelConfig, check_vocabulary
from trainer.model.weights import weights_of
from trainer.processes import Processes, start_processes

PROJECT = Path(__file__).resolve().parents[2]


RECOMPUTE = """
import json, sys
from pathlib import Path
from tests.trainer.small_training import SmallTraining
from trainer.configuration.parallel import ParallelConfig
from trainer.model.weights import weights_bytes, weights_of
from evalkit.canonical import sha256_bytes

small = SmallTraining(Path(sys.argv[1]), parallel=ParallelConfig(recompute=json.loads(sys.argv[2])))
result = small.step(1, [small.batches[1]])
print(json.dumps([result.loss, result.grad_norm, sha256_bytes(weights_bytes(weights_of(small.model)))]))
"""


def step_with_recompute(folder, kind, graphs):
    """Loss, norm and weights after a step, and how many batched products the largest compiled graph has.

    In a process of its own: MindSpore decides at its first graph whether graphs are written down.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(PROJECT),
        "MS_DEV_SAVE_GRAPHS": "1",
        "MS_DEV_SAVE_GRAPHS_PATH": str(graphs),
    }
    done = subprocess.run(
        [sys.executable, "-c", RECOMPUTE, str(folder), json.dumps(kind)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    texts = [file.read_text() for file in graphs.rglob("*_validate_*.ir")]
    return json.loads(done.stdout), max(text.count("PrimFunc_BatchMatMul(") for text in texts)


@pytest.mark.slow
def test_recomputation_changes_no_bit(training_folder, tmp_path):
    """And is really done: the graph holds the two products of attention again, in each of two layers."""
    plain, products = step_with_recompute(training_folder, "none", tmp_path / "none")
    for kind in ("selective", "full", {"segments": 2}):
        again, more = step_with_recompute(training_folder, kind, tmp_path / str(kind))
        assert again == plain and more == products + 4, kind


def test_segments_keep_every_weight_and_its_name(training_folder):
    plain = SmallTraining(training_folder)
    again = SmallTraining(training_folder, parallel=ParallelConfig(recompute={"segments": 2}))
    weights, other = weights_of(plain.model), weights_of(again.model)
    assert list(weights) == list(other)
    assert all(np.array_equal(weights[name], other[name]) for name in weights)
    assert len(again.model.model.layers) == 1


def test_replicas_share_the_rows_of_a_batch(training_folder):
    small = SmallTraining(training_folder)
    batch = small.batches[0]
    parts = [Processes(rank, 2).share(batch, 2) for rank in (0, 1)]
    for name in ("token_ids", "targets", "positions", "segments", "weights"):
        assert np.array_equal(np.concatenate([getattr(part, name) for part in parts]), getattr(batch, name))
    assert Processes(0, 1).share(batch, 4) is batch
    assert Processes(1, 2).data_config(small.config).batch_size == 2 * small.config.batch_size


def test_a_vocabulary_that_cant_be_cut_is_named():
    with pytest.raises(
        InputError, match=r"vocabulary of 299 isn't a multiple of 4; set model.vocab_multiple to 4"
    ):
        check_vocabulary(ParallelConfig(model=4), 299)
    check_vocabulary(ParallelConfig(model=4), 300)


def test_what_cant_be_trained_is_refused(training_folder, monkeypatch):
    config = SmallTraining(training_folder).config
    monkeypatch.setenv("MS_WORKER_NUM", "2")
    with pytest.raises(
        InputError, match=r"checks a declaration with model or pipeline above 1 .* but can't train it"
    ):
        start_processes(config.model_copy(update={"parallel": ParallelConfig(model=2)}))
    with pytest.raises(InputError, match=r"need 1 processes, 2 was started"):
        start_processes(config)


def run_under_msrun(config, out, *options):
    """`trainer train` in two processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    scripts = Path(sys.executable).parent
    command = [scripts / "msrun", "--worker_num=2", "--local_worker_num=2", "--master_addr=127.0.0.1"]
    command += [f"--master_port={port}", f"--log_dir={out}-logs", "--join=True", "--cluster_time_out=120"]
    command += [PROJECT / "trainer" / "__main__.py", "train", config, "--out", out, *options]
    path = f"{scripts}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "PATH": path}
    done = subprocess.run(
        [str(part) for part in command],
        env=environment,
        cwd=config.parent,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    log = out.with_name(f"{out.name}-logs") / "worker_0.log"
    assert done.returncode == 0, done.stdout[-2000:] + log.read_text()[-2000:]


@pytest.mark.slow
def test_two_replicas_train_as_one_process_with_twice_the_batch(tmp_path):
    """Losses, gradient norms and weights within float32 noise; the same samples in each step; then a resume."""
    one = write_config(tmp_path / "data", 12)
    base = one.read_text().replace("dropout: 0.1", "dropout: 0.0").replace("every: 1,", "every: 4,")
    one.write_text(base.replace("batch_size: 2", "batch_size: 4"))
    two = one.with_name("two.yaml")
    two.write_text(base + "parallel: {data: 2}\n")
    subprocess.run(
        [sys.executable, "-m", "trainer", "train", str(one), "--out", str(tmp_path / "one")],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        check=True,
        capture_output=True,
    )
    run_under_msrun(two, tmp_path / "two")
    logs = [read_lines(tmp_path / name / "log.jsonl") for name in ("one", "two")]
    for single, double in zip(*logs, strict=True):
        assert double["loss"] == pytest.approx(single["loss"], rel=1e-5)
        assert double["grad_norm"] == pytest.approx(single["grad_norm"], rel=1e-4)
        for same in ("step", "epoch", "tokens", "learning_rate", "loss_scale"):
            assert double[same] == single[same]
        assert double["sample_ids"] == single["sample_ids"]
    weights = [load_file(step_folder(tmp_path / name, 12) / "weights.safetensors") for name in ("one", "two")]
    for name, value in weights[0].items():
        # Adam divides small gradients by their own size: noise may move single weights by a little.
        assert np.mean(np.abs(value - weights[1][name])) < 1e-4
    before = (step_folder(tmp_path / "two", 12) / "weights.safetensors").read_bytes()
    (step_folder(tmp_path / "two", 12) / "state.safetensors").write_bytes(b"torn")
    run_under_msrun(two, tmp_path / "two", "--resume")
    assert (step_folder(tmp_path / "two", 12) / "weights.safetensors").read_bytes() == before
    assert [entry["step"] for entry in read_lines(tmp_path / "two" / "log.jsonl")] == list(range(1, 13))
