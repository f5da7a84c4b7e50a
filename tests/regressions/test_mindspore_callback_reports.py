"""Public reports about callbacks, metrics and loss scales in MindSpore trainings. Numbers as in the list of reports."""

import math
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn
from mindspore.train import Callback

from evalkit.errors import InputError
from evalkit.resampling.features import from_function
from evalkit.training.callback import EvalCallback
from evalkit.training.drift import Drift
from evalkit.training.loss_scale import LossScaleReader
from evalkit.training.metrics import TokenMetric
from evalkit.training.selection import KeepBest
from evalkit.training.triggers import AtEnd, EveryEpoch, EveryNSteps
from tests.evalkit.training.driver import Nowhere, drive, network
from tests.evalkit.training.fixtures import small_validation

pytestmark = pytest.mark.usefixtures("pynative")


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    return small_validation(tmp_path_factory.mktemp("validation"))


@pytest.fixture(scope="module")
def watched(check):
    """A callback after eight steps in two epochs, evaluated after each of them; the weights stay as they are."""
    net = network(check)
    net.set_train(True)
    net.dropout.set_train(False)
    callback = EvalCallback(net, check, [Nowhere()], triggers=[EveryEpoch(), EveryNSteps(4), AtEnd()])
    before = parallel_context()
    drive(callback, steps=8)
    assert parallel_context() == before
    return net, callback


def parallel_context() -> list:
    names = ("parallel_mode", "pipeline_stages", "device_num", "gradients_mean", "full_batch")
    return [ms.get_auto_parallel_context(name) for name in names]


def values(record) -> dict:
    return {(one["name"], one["slice"]): one["value"] for one in record.metrics}


def test_m01_evaluations_hang_on_events_of_the_training(watched):
    """A callback on on_eval_step_end never fired."""
    _, callback = watched
    assert [record.epoch for record in callback.records] == [0, 1]
    theirs = {name for name in vars(EvalCallback) if name.startswith("on_")}
    assert theirs == {"on_train_begin", "on_train_step_end", "on_train_end"}
    assert all(hasattr(Callback, name) for name in theirs)


def test_m02_a_second_evaluation_holds_nothing_of_the_first(watched):
    _, callback = watched
    first, second = callback.records
    assert first.weights_sha256 == second.weights_sha256 and values(first) == values(second)


def test_m02_a_cleared_metric_begins_anew():
    metric = TokenMetric()
    logits, labels = (
        np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32),
        np.ones((2, 3), np.int32),
    )
    metric.update(logits, labels)
    first = metric.eval()
    metric.update(-logits, labels)
    metric.clear()
    metric.update(logits, labels)
    assert metric.eval() == first


@pytest.mark.parametrize("further", [(), (Tensor(0.1),), (Tensor(0.1), Tensor(2.0))])
def test_m06_the_scale_is_read_from_three_outputs_and_more(further):
    outputs = (Tensor(2.5), Tensor(False), Tensor(1024.0), *further)
    assert LossScaleReader().read(SimpleNamespace(net_outputs=outputs), 1).value == 1024


def test_m07_a_plain_number_is_a_scale():
    owner = SimpleNamespace(scale_sense=512.0)
    fields = SimpleNamespace(net_outputs=None, train_network=owner)
    assert LossScaleReader().at_start(fields) == 512
    assert LossScaleReader(every=1).read(fields, 1).value == 512


def test_m08_without_a_scaler_the_record_says_null(watched):
    _, callback = watched
    assert all(record.to_dict()["loss_scale"] is None and record.error is None for record in callback.records)


def test_m09_what_is_kept_of_a_batch_is_a_copy_on_the_host(check):
    """Kept tensors held the device's memory."""
    drift = Drift(lambda arguments: [Tensor([1, 2, 3])], [from_function("words", len)])
    drift.see(None)
    ((_, kept),) = drift._window
    assert isinstance(kept, np.ndarray) and kept.base is None


def test_m10_m11_contexts_and_modes_are_left_as_they_were(watched):
    """A callback set pipeline_stages for everybody; another put a phase back instead of each cell's mode."""
    net, _ = watched
    assert {name for name, cell in net.cells_and_names() if not cell.training} == {"dropout"}


def test_m12_m39_a_metric_that_is_not_there_is_told_at_once(check):
    """`metric` for `metrics` was never read; `eval_loss` was missing at the end of the training."""
    with pytest.raises(TypeError, match="metric"):
        EvalCallback(network(check), check, [Nowhere()], metric=["perplexity/token"])
    with pytest.raises(InputError, match="unknown metric 'eval_loss'"):
        EvalCallback(network(check), check, [Nowhere()], metrics=["eval_loss"])
    with pytest.raises(InputError, match="unknown metric 'eval_loss'"):
        KeepBest("eval_loss", print)


def test_m13_scores_are_computed_in_a_cell(watched):
    _, callback = watched
    assert isinstance(callback._backend._head, nn.Cell)


def test_m14_e05_perplexity_is_over_tokens_not_over_batches():
    """Mean losses of batches were averaged, whatever the batches held."""
    generator = np.random.default_rng(1)
    logits = generator.normal(size=(4, 6, 7)).astype(np.float32)
    labels = generator.integers(0, 7, (4, 6)).astype(np.int32)
    labels[3, 1:] = -100
    metric = TokenMetric()
    for rows in ([0, 1, 2], [3]):
        metric.update(logits[rows], labels[rows])
    wide = logits.astype(np.float64)
    losses = (
        np.log(np.exp(wide).sum(-1)) - np.take_along_axis(wide, np.maximum(labels, 0)[..., None], -1)[..., 0]
    )
    assert metric.eval() == pytest.approx(math.exp(losses[labels >= 0].mean()), rel=1e-6)
    by_batch = math.exp((losses[:3].mean() + losses[3, 0]) / 2)
    assert abs(metric.eval() - by_batch) > 0.01


def test_m15_an_interval_that_never_comes_is_refused():
    """-1 was documented as "every epoch" and meant "never"."""
    for epochs in (-1, 0):
        with pytest.raises(InputError, match="epochs: a whole number from 1 on"):
            EveryEpoch(epochs)


def test_m22_rules_that_meet_at_a_step_make_one_evaluation(watched):
    """A checkpoint was saved twice where the interval divides the number of steps."""
    _, callback = watched
    assert [(record.step, record.trigger) for record in callback.records] == [
        (4, "every_epoch"),
        (8, "every_epoch"),
    ]
