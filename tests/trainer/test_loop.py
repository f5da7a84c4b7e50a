"""The training loop: what it writes, and that it is reproducible."""

import itertools
import json
import math

import mindspore as ms
import numpy as np
import pytest
from safetensors.numpy import load_file

from evalkit.errors import InputError
from tests.trainer.small_training import SmallTraining, read_lines
from trainer.checkpoint import read_checkpoint, saved_steps, step_folder
from trainer.config import load_config
from trainer.configuration.precision import LossScaleConfig, PrecisionConfig
from trainer.loop import train
from trainer.model.weights import initialise, weights_of


def test_log_has_a_line_a_step(tiny_run):
    log = read_lines(tiny_run / "log.jsonl")
    assert [entry["step"] for entry in log] == list(range(1, 13))
    fields = "step epoch loss loss_scale overflow grad_norm learning_rate tokens tokens_per_s sample_ids elapsed_ns"
    assert set(log[0]) == set(fields.split())
    assert log[-1]["loss"] < log[0]["loss"] and log[-1]["epoch"] > 0
    assert (
        log[0]["loss_scale"] == 1024 and log[-1]["loss_scale"] == 4096
    )  # twice four steps without an overflow
    assert all(
        a["tokens"] < b["tokens"] and a["elapsed_ns"] < b["elapsed_ns"] for a, b in itertools.pairwise(log)
    )


def test_evaluations_are_logged(tiny_run):
    evaluations = read_lines(tiny_run / "evaluations.jsonl")
    assert [(entry["step"], entry["trigger"]) for entry in evaluations] == [(6, "every"), (12, "every")]
    assert all(entry["metrics"][0]["name"] == "perplexity/token" for entry in evaluations)
    assert evaluations[1]["metrics"][0]["value"] < evaluations[0]["metrics"][0]["value"]


def test_the_last_and_the_best_checkpoints_are_kept(tiny_run):
    best = json.loads((tiny_run / "best.json").read_text())
    assert best["step"] == 12 and saved_steps(tiny_run) == [8, 12]
    assert read_checkpoint(tiny_run).path == step_folder(tiny_run, 12)
    facts = read_checkpoint(tiny_run).meta.training
    assert facts["steps"] == 12 and facts["seed"] == 7 and len(facts["data_sha256"]) == 1
    assert math.isfinite(facts["final_loss"]) and facts["final_loss_scale"] == 8192


def test_the_same_seed_gives_the_same_weights_bit_for_bit(tiny_run, training_folder, tmp_path):
    """Also without evaluation and checkpoints in between: neither touches the training (E50)."""
    config = load_config(training_folder / "config.yaml")
    plain = config.model_copy(update={"evaluation": None, "checkpoints": None})
    train(plain, training_folder, tmp_path / "again")
    name = "checkpoints/step-12/weights.safetensors"
    assert (tmp_path / "again" / name).read_bytes() == (tiny_run / name).read_bytes()


def test_another_run_folder_is_asked_for(tiny_run, training_folder):
    with pytest.raises(InputError, match="holds checkpoints already"):
        train(load_config(training_folder / "config.yaml"), training_folder, tiny_run)


def test_an_overflow_skips_the_step_and_lowers_the_scale(training_folder):
    wide = PrecisionConfig(loss_scale=LossScaleConfig(initial=1024, max=3e38))
    small = SmallTraining(training_folder, precision=wide)
    first = small.step(1, [small.batches[0]])
    before = weights_of(small.model)
    small.step.scale.restore(3e38, 0)
    result = small.step(2, [small.batches[1]])
    assert not first.overflow and result.overflow and result.grad_norm is None and math.isfinite(result.loss)
    assert all(np.array_equal(before[name], value) for name, value in weights_of(small.model).items())
    assert small.step.scale.value == pytest.approx(1.5e38) and small.step.optimizer.applied == 1
    small.step.scale.restore(1024.0, 0)
    assert not small.step(3, [small.batches[1]]).overflow
    assert any(not np.array_equal(before[name], value) for name, value in weights_of(small.model).items())


def test_accumulated_batches_equal_one_large_batch(training_folder):
    large = SmallTraining(training_folder, batch_size=8)
    halves = SmallTraining(training_folder, batch_size=4)
    # The same rows, cut in another way.
    one = large.step(1, [large.batches[0]])
    two = halves.step(1, halves.batches[:2])
    assert one.loss == pytest.approx(two.loss, rel=1e-6) and one.grad_norm == pytest.approx(
        two.grad_norm, rel=1e-5
    )
    other = weights_of(halves.model)
    # The first Adam step divides each gradient by its own size, so it is only the sign of noise that may differ.
    apart = [np.mean(np.abs(value - other[name]) > 1e-4) for name, value in weights_of(large.model).items()]
    assert max(apart) < 0.02


def test_a_loss_that_is_no_number_ends_the_run(training_folder, tmp_path, monkeypatch):
    def broken(model, spec, seed):
        initialise(model, spec, seed)
        table = model.model.embed_tokens.weight
        table.set_data(ms.Tensor(np.full(table.shape, np.nan, np.float32)))

    monkeypatch.setattr("trainer.setup.initialise", broken)
    with pytest.raises(
        InputError, match=r"step 1: the loss is nan; lower optimizer.learning_rate.*no checkpoint yet"
    ):
        train(load_config(training_folder / "config.yaml"), training_folder, tmp_path / "broken")


def test_checkpoint_weights_have_hugging_face_names(tiny_run):
    weights = load_file(step_folder(tiny_run, 12) / "weights.safetensors")
    assert weights["model.layers.1.self_attn.k_proj.weight"].shape == (8, 16)
    assert weights["model.layers.0.mlp.gate_proj.weight"].shape == (64, 16)
    assert "lm_head.weight" not in weights
