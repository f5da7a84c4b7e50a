"""Public reports about training with MindSpore: resume, loss scale, callbacks. Numbers as in the list of reports."""

import pickle
import shutil
import sys

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter
from mindspore.train import Callback

from tests.trainer.small_training import SmallTraining, read_lines
from trainer.checkpoint import read_checkpoint, saved_steps, step_folder
from trainer.config import load_config
from trainer.loop import train
from trainer.model.weights import weights_of
from trainer.saving import Saver
from trainer.validation import Validation


@pytest.fixture(scope="module")
def config(training_folder):
    return load_config(training_folder / "config.yaml")


def restored(config, folder, run):
    """A fresh step that took up the last checkpoint of a run, and its counters."""
    small = SmallTraining(folder)
    validation = Validation(config.evaluation, config.steps, small.data, small.step)
    return small.step, Saver(config, small.data, small.step, validation, run).take_up(read_checkpoint(run))


def test_m06_m07_m08_the_loss_scale_survives_a_resume(config, training_folder, tiny_run):
    """It was lost when a cell returned more than three outputs, when it was a plain number, or in float32 runs."""
    assert config.precision.level == "O0"
    step, counters = restored(config, training_folder, tiny_run)
    assert counters.step == 12 and step.scale.value == 8192 and step.scale.counter == 0
    assert float(step.scale_sense.asnumpy()) == 8192  # what the graph multiplies with
    step.scale.adjust(False)
    assert step.scale.value == 4096


def test_m22_a_step_is_saved_once(config, training_folder, tmp_path, monkeypatch):
    """The interval divides the number of steps, and the last step is also the best."""
    written = []
    save = Saver.save
    monkeypatch.setattr(
        Saver, "save", lambda self, counters: written.append(counters.step) or save(self, counters)
    )
    train(config, training_folder, tmp_path / "run")
    assert written == [4, 6, 8, 12]


def test_m23_the_newest_checkpoint_is_that_of_the_highest_step(tiny_run, tmp_path):
    """By number, not by name or date; what only looks like one isn't taken."""
    run = tmp_path / "run"
    for name in (
        "step-12",
        "step-9",
        "step-100",
        "step-0100",
        "step-101.bak",
        "step-102-old",
        ".step-103.tmp",
    ):
        shutil.copytree(step_folder(tiny_run, 12), run / "checkpoints" / name)
    assert saved_steps(run) == [9, 12, 100] and read_checkpoint(run).path.name == "step-100"


class Keeper(Callback):
    """Keeps what it is given."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def on_train_step_end(self, run_context):
        self.kept.append(run_context.original_args().net_outputs)


def test_m09_kept_outputs_dont_change_later(config, training_folder, tmp_path):
    """In PyNative mode the third output of MindSpore's own cell is the live Parameter."""
    keeper = Keeper()
    short = config.model_copy(update={"steps": 6, "checkpoints": None, "evaluation": None})
    train(short, training_folder, tmp_path / "run", callbacks=[keeper])
    scales = [outputs[2] for outputs in keeper.kept]
    assert not any(isinstance(value, Parameter) for outputs in keeper.kept for value in outputs)
    assert [float(scale.asnumpy()) for scale in scales] == [1024, 1024, 1024, 2048, 2048, 2048]
    log = read_lines(tmp_path / "run" / "log.jsonl")
    assert [np.float32(entry["loss"]) for entry in log] == [outputs[0].asnumpy() for outputs in keeper.kept]


def test_m10_training_leaves_the_parallel_context_alone(tiny_run):
    assert ms.get_auto_parallel_context("parallel_mode") == ms.ParallelMode.STAND_ALONE
    assert ms.get_auto_parallel_context("pipeline_stages") == 1


def test_m36_m37_an_overflow_of_gradient_or_loss_is_never_applied(training_folder):
    small = SmallTraining(training_folder)
    small.step(1, [small.batches[0]])
    before = weights_of(small.model)
    moments = [parameter.asnumpy().copy() for parameter in small.step.optimizer.first]
    batch = small.batches[1]
    # A loss that overflows in the forward pass: no loss scale is to blame.
    huge = type(batch)(**{**vars(batch), "weights": np.full_like(batch.weights, 3e38)})
    result = small.step(2, [huge], tokens=1.0)
    assert result.overflow and not np.isfinite(result.loss) and small.step.optimizer.applied == 1
    assert all(np.array_equal(before[name], value) for name, value in weights_of(small.model).items())
    assert all(
        np.array_equal(old, new.asnumpy())
        for old, new in zip(moments, small.step.optimizer.first, strict=True)
    )


def test_m43_the_validation_loss_is_over_all_batches(training_folder, tiny_run):
    """Model.fit reports the loss of the last validation batch alone."""
    small = SmallTraining(training_folder)
    batches = small.data.validation
    each = [np.log(small.step.perplexity([batch])) for batch in batches]
    tokens = [float(batch.weights.sum()) for batch in batches]
    together = np.log(small.step.perplexity(batches))
    assert together == pytest.approx(np.average(each, weights=tokens), rel=1e-6)
    assert abs(together - each[-1]) > 1e-4


_watched: list[str] = []
_watching = False


def _watch(event, arguments):
    if _watching and event == "pickle.find_class":
        _watched.append(str(arguments))


sys.addaudithook(_watch)


def test_nothing_is_unpickled_on_resume(config, training_folder, tiny_run):
    global _watching
    _watched.clear()
    _watching = True
    try:
        pickle.loads(pickle.dumps(np.float32))  # the watch works
        assert _watched
        _watched.clear()
        restored(config, training_folder, tiny_run)
        assert not _watched
    finally:
        _watching = False
