"""The loss scale, from every form that MindSpore has."""

from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, amp, nn
from mindspore.train.callback._callback import InternalCallbackParam

from evalkit.errors import InputError
from evalkit.training.loss_scale import LossScaleReader, LossScaleReading, loss_of


def arguments(**fields) -> InternalCallbackParam:
    """What `RunContext.original_args()` gives: missing attributes raise KeyError."""
    found = InternalCallbackParam()
    for name, value in fields.items():
        found[name] = value
    return found


def test_none_where_there_is_none():
    reader = LossScaleReader()
    plain = arguments(train_network=nn.Dense(2, 2), net_outputs=Tensor(1.0))
    assert reader.at_start(plain) is None
    assert reader.read(plain, 1) == LossScaleReading(None, None)
    assert reader.source is None


@pytest.mark.parametrize("more", [(), (Tensor(1e-3),), (Tensor(1e-3), Tensor(0.8)), (1e-3, 0.8, 0.1, 0.2)])
def test_step_outputs_of_any_length(more):
    outputs = (Tensor(2.5), Tensor(True), Tensor(8192.0, ms.float32), *more)
    reader = LossScaleReader()
    assert reader.read(arguments(net_outputs=outputs), 3) == LossScaleReading(8192.0, True)
    assert (reader.source, reader.lag_steps) == ("step_outputs", 0)


def test_a_live_parameter_is_copied_at_once():
    """In PyNative mode the third output is the parameter itself, which later steps change."""
    scale = ms.Parameter(Tensor(1024.0, ms.float32), name="scale")
    reading = LossScaleReader().read(arguments(net_outputs=(Tensor(1.0), Tensor(False), scale)), 1)
    scale.set_data(Tensor(2.0, ms.float32))
    assert reading.value == 1024.0


def test_the_manager_of_model():
    manager = amp.DynamicLossScaleManager(2**16, 2, 100)
    plain = arguments(loss_scale_mananger=manager, net_outputs=Tensor(1.0), dataset_sink_mode=False)
    reader = LossScaleReader()
    assert reader.at_start(plain) == 2.0**16
    manager.update_loss_scale(True)
    assert reader.read(plain, 1).value == 2.0**15
    assert reader.source == "manager"


def test_the_manager_is_stale_in_sink_mode():
    cell = nn.DynamicLossScaleUpdateCell(512.0, 2, 100)
    network = SimpleNamespace(scale_sense=cell)
    sink = arguments(
        loss_scale_mananger=amp.DynamicLossScaleManager(2**16, 2, 100),
        net_outputs=Tensor(1.0),
        dataset_sink_mode=True,
        train_network=network,
    )
    reader = LossScaleReader(every=1)
    assert reader.read(sink, 1).value == 512.0
    assert reader.source == "parameter"


@pytest.mark.parametrize(
    "network",
    [
        SimpleNamespace(scale_sense=ms.Parameter(Tensor(256.0, ms.float32), name="sense")),
        SimpleNamespace(scale_sense=nn.DynamicLossScaleUpdateCell(256.0, 2, 100)),
        SimpleNamespace(scale_sense=256.0),
        SimpleNamespace(loss_scaler=amp.DynamicLossScaler(256.0, 2, 100)),
        SimpleNamespace(network=SimpleNamespace(loss_scaler=amp.DynamicLossScaler(256.0, 2, 100))),
    ],
    ids=["parameter", "update-cell", "number", "scaler", "scaler-inside"],
)
def test_a_parameter_is_read_every_few_steps(network):
    reader = LossScaleReader(every=4)
    plain = arguments(train_network=network, net_outputs=Tensor(1.0))
    assert reader.at_start(plain) == 256.0
    assert [reader.read(plain, step).value for step in range(1, 9)] == [None, None, None, 256.0] * 2
    assert reader.lag_steps == 3


def test_a_scaler_that_is_given():
    scaler = amp.DynamicLossScaler(64.0, 2, 100)
    reader = LossScaleReader(scaler, every=1)
    assert reader.read(arguments(net_outputs=Tensor(1.0)), 1).value == 64.0
    scaler.adjust(Tensor(False))
    assert reader.read(arguments(net_outputs=Tensor(1.0)), 2).value == 32.0


def test_three_outputs_that_are_no_loss_scale():
    outputs = (Tensor(1.0), Tensor(np.zeros((4, 7), np.float32)), Tensor(np.zeros((4, 3), np.float32)))
    assert LossScaleReader().read(arguments(net_outputs=outputs), 1).value is None


def test_loss_of_what_a_step_returns():
    assert loss_of(Tensor(2.5)) == 2.5
    assert loss_of((Tensor(2.5), Tensor(True), Tensor(1.0))) == 2.5
    assert loss_of(Tensor(np.array([1.0, 3.0], np.float32))) == 2.0
    assert loss_of(()) is None and loss_of(None) is None and loss_of("x") is None


def test_a_wrong_rhythm_is_refused():
    with pytest.raises(InputError, match="loss_scale_every: a whole number from 1 on"):
        LossScaleReader(every=0)
