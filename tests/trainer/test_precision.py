"""Mixed precision, the loss scale, and what a step does with values that aren't finite."""

import itertools
import math

import mindspore as ms
import numpy as np
import pytest

from evalkit.errors import InputError
from tests.trainer.small_training import SmallTraining, read_lines
from trainer.checkpoint import read_checkpoint
from trainer.config import load_config
from trainer.configuration.precision import LossScaleConfig, PrecisionConfig
from trainer.configuration.running import CheckpointConfig
from trainer.loop import train
from trainer.loss_scale import LossScale
from trainer.model.weights import weights_of
from trainer.precision import check_precision

HALF = PrecisionConfig(level="O2", loss_scale=LossScaleConfig(initial=1024, window=4))


def losses(out):
    return [entry["loss"] for entry in read_lines(out / "log.jsonl")]


@pytest.fixture(scope="module")
def config(training_folder):
    return load_config(training_folder / "config.yaml").model_copy(
        update={"checkpoints": None, "evaluation": None}
    )


def run(config, folder, out, precision, steps):
    train(config.model_copy(update={"precision": precision, "steps": steps}), folder, out)
    return read_lines(out / "log.jsonl")


def test_float16_reaches_the_float32_loss_within_2_percent(config, training_folder, tmp_path):
    ends = {}
    for name, precision in (("full", PrecisionConfig()), ("half", HALF)):
        log = run(config, training_folder, tmp_path / name, precision, 40)
        assert not any(entry["overflow"] for entry in log)
        ends[name] = np.mean([entry["loss"] for entry in log[-10:]])
        assert ends[name] < 0.5 * log[0]["loss"]
    assert ends["half"] == pytest.approx(ends["full"], rel=0.02) and ends["half"] != ends["full"]


def test_training_recovers_from_overflows(config, training_folder, tmp_path):
    """A scale that is too large by far halves until the gradients fit; each of those steps changes nothing."""
    precision = PrecisionConfig(level="O2", loss_scale=LossScaleConfig(initial=2.0**24))
    log = run(config, training_folder, tmp_path / "run", precision, 30)
    skipped = [entry["overflow"] for entry in log]
    assert 1 <= sum(skipped) <= 15 and skipped[0] and not all(skipped[-3:])
    for entry, after in itertools.pairwise(log):
        assert after["loss_scale"] == entry["loss_scale"] / (2 if entry["overflow"] else 1)
        assert (entry["grad_norm"] is None) == entry["overflow"]
    assert log[-1]["loss"] < 0.75 * log[0]["loss"]
    updates = read_checkpoint(tmp_path / "run").meta.resume.updates
    assert updates == 30 - sum(skipped)


def test_one_step_in_float16_is_that_in_float32(training_folder):
    """Loss and gradient norm within what 11 bits give; weights, moments and gradients stay float32."""
    full, half = SmallTraining(training_folder), SmallTraining(training_folder, precision=HALF)
    results = [small.step(1, [small.batches[0]]) for small in (full, half)]
    assert results[1].loss == pytest.approx(results[0].loss, rel=1e-3) and results[0].loss != results[1].loss
    assert results[1].grad_norm == pytest.approx(results[0].grad_norm, rel=1e-2)
    assert all(value.dtype == np.float32 for value in weights_of(half.model).values())


def test_operations_can_be_forced_to_float32(training_folder):
    """With every product forced, O2 is O0 to the last bit."""
    everything = ("projections", "attention_scores", "attention_values", "feed_forward", "head")
    full = SmallTraining(training_folder)
    forced = SmallTraining(training_folder, precision=HALF.model_copy(update={"float32": everything}))
    some = SmallTraining(training_folder, precision=HALF.model_copy(update={"float32": everything[:3]}))
    loss = [small.step(1, [small.batches[0]]).loss for small in (full, forced, some)]
    assert loss[0] == loss[1] != loss[2]


def test_the_scale_moves_within_its_bounds():
    scale = LossScale(LossScaleConfig(initial=8, window=2, min=4, max=16))
    moves = []
    for finite in (False, False, False, True, True, True, True, True, True, False):
        scale.adjust(finite)
        moves.append(scale.value)
    assert moves == [4, 4, 4, 4, 8, 8, 16, 16, 16, 8]
    assert float(scale.scaler.scale_value.asnumpy()) == 8 and scale.counter == 0


def test_bfloat16_is_refused_on_a_cpu():
    with pytest.raises(InputError, match="bfloat16 has no kernels on a CPU"):
        check_precision(PrecisionConfig(level="O2", dtype="bfloat16"))


def broken_start(monkeypatch):
    """Every batch's loss is NaN."""
    from trainer.model.weights import initialise

    def broken(model, spec, seed):
        initialise(model, spec, seed)
        table = model.model.embed_tokens.weight
        table.set_data(ms.Tensor(np.full(table.shape, np.nan, np.float32)))

    monkeypatch.setattr("trainer.setup.initialise", broken)


def test_on_nan_skip_leaves_the_weights_alone_but_not_for_ever(
    config, training_folder, tmp_path, monkeypatch
):
    broken_start(monkeypatch)
    saved = CheckpointConfig(every=40)
    skip = config.model_copy(update={"on_nan": "skip", "steps": 60, "checkpoints": saved})
    with pytest.raises(InputError, match=r"step 50: 50 steps in a row .* lower optimizer.learning_rate"):
        train(skip, training_folder, tmp_path / "run")
    log = read_lines(tmp_path / "run" / "log.jsonl")
    assert len(log) == 50 and all(entry["overflow"] and entry["loss"] is None for entry in log)
    assert read_checkpoint(tmp_path / "run").meta.training["final_loss"] is None


def test_debug_names_the_layer_where_a_value_stops_being_finite(
    config, training_folder, tmp_path, monkeypatch
):
    broken_start(monkeypatch)
    debug = config.model_copy(update={"debug": True})
    try:
        with pytest.raises(InputError, match=r"step 1: model.embed_tokens gave a value that isn't finite"):
            train(debug, training_folder, tmp_path / "run")
    finally:
        ms.set_context(mode=ms.GRAPH_MODE)


def test_debug_trains_as_the_graph_does(config, training_folder, tiny_run, tmp_path):
    debug = config.model_copy(update={"debug": True})
    short = {"steps": 3, "optimizer": config.optimizer.model_copy(update={"warmup_steps": 1})}
    try:
        train(debug.model_copy(update=short), training_folder, tmp_path / "debug")
    finally:
        ms.set_context(mode=ms.GRAPH_MODE)
    train(config.model_copy(update=short), training_folder, tmp_path / "graph")
    assert losses(tmp_path / "debug") == pytest.approx(losses(tmp_path / "graph"), rel=1e-5)
    shapes = {entry["cell"]: entry for entry in read_lines(tmp_path / "debug" / "shapes.jsonl")}
    assert shapes["model.layers.1.mlp.down_proj"]["output"] == ["float32 [192, 16]"]
    assert math.isfinite(losses(tmp_path / "debug")[-1])
