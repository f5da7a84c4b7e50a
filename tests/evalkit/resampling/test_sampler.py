"""Drawing the rows of a MindSpore dataset by weights, and the pattern in which new weights take effect."""

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn
from mindspore.train import Callback, Model

from evalkit.errors import InputError
from evalkit.resampling.sampler import ReweightedSampler

IDS = [f"t{index}" for index in range(8)]
WEIGHTS = {"t1": 1.0, "t2": 1.0, "t6": 2.0}


def rows_of(sampler):
    data = ds.NumpySlicesDataset({"row": np.arange(8, dtype=np.int32)}, sampler=sampler)
    return [int(row) for (row,) in data.create_tuple_iterator(num_epochs=1, output_numpy=True)]


def test_rows_follow_the_weights():
    sampler = ReweightedSampler(IDS, WEIGHTS, 40, seed=3)
    rows = rows_of(sampler)
    assert {row: rows.count(row) for row in set(rows)} == {1: 10, 2: 10, 6: 20}
    assert rows == rows_of(ReweightedSampler(IDS, WEIGHTS, 40, seed=3)) == list(sampler)
    assert rows != rows_of(ReweightedSampler(IDS, WEIGHTS, 40, seed=4))
    assert rows != sorted(rows)


@pytest.mark.parametrize(
    ("weights", "size", "message"),
    [
        ({"other": 1.0}, 4, "no row of the dataset has one above 0"),
        ({"t1": -1.0}, 4, "finite numbers from 0 on"),
        ({"t1": float("nan")}, 4, "finite numbers from 0 on"),
        ([1.0, 2.0], 4, "weights: a mapping from a row's id to its weight is needed"),
        (WEIGHTS, 0, "size: a whole number from 1 on"),
    ],
)
def test_nothing_to_draw_from_is_refused(weights, size, message):
    with pytest.raises(InputError, match=message):
        ReweightedSampler(IDS, weights, size, seed=0)


class SeenRows(Callback):
    """The rows of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs = []

    def on_train_epoch_begin(self, run_context):
        self.epochs.append([])

    def on_train_step_end(self, run_context):
        element = run_context.original_args().train_dataset_element[0]
        self.epochs[-1] += element.asnumpy()[:, 0].astype(int).tolist()


def batches(sampler):
    rows = np.arange(8, dtype=np.float32)[:, None]
    data = ds.NumpySlicesDataset({"x": rows, "y": rows}, sampler=sampler)
    return data.batch(4)


def model():
    network = nn.Dense(1, 1)
    return Model(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 1e-3))


def test_one_training_an_epoch_is_the_pattern_in_which_new_weights_count():
    """MindSpore copies a sampler with its iterator, so a new one needs a new dataset and a `Model.train` of its own."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    seen, training = SeenRows(), model()
    for epoch, weights in enumerate(({"t1": 1.0}, {"t6": 1.0})):
        data = batches(ReweightedSampler(IDS, weights, 8, seed=epoch))
        training.train(epoch + 1, data, callbacks=[seen], dataset_sink_mode=False, initial_epoch=epoch)
    assert seen.epochs == [[1] * 8, [6] * 8]


def test_a_sampler_changed_inside_one_training_is_ignored():
    """The reason for the pattern; should MindSpore ever change this, the pattern may go."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    sampler, seen = ReweightedSampler(IDS, {"t1": 1.0}, 8, seed=0), SeenRows()

    class Change(Callback):
        def on_train_epoch_end(self, run_context):
            sampler._rows = [6] * 8

    model().train(2, batches(sampler), callbacks=[seen, Change()], dataset_sink_mode=False)
    assert seen.epochs == [[1] * 8, [1] * 8]
