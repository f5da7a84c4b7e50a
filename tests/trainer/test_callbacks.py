"""mindspore.train.Callback in our loop, and what Model.train does with the same callback."""

import json
import math

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.train import Callback, History, LossMonitor, Model, TimeMonitor

from evalkit.errors import InputError
from tests.trainer.small_training import read_lines
from trainer.callbacks import load_callbacks
from trainer.checkpoint import read_checkpoint, saved_steps
from trainer.config import load_config
from trainer.loop import train


class Recorder(Callback):
    """Writes down every event with the counters."""

    def __init__(self, stop_at=None):
        super().__init__()
        self.events, self.keys, self.stop_at, self.entered = [], {}, stop_at, 0

    def __enter__(self):
        self.entered += 1
        return self

    def __exit__(self, *error):
        self.entered -= 1

    def _note(self, name, context):
        arguments = context.original_args()
        self.events.append((name, arguments.get("cur_epoch_num"), arguments.cur_step_num))
        self.keys.setdefault(name, set(arguments))
        return arguments

    def on_train_begin(self, run_context):
        self.scale_before = float(self._note("begin", run_context).train_network.scale_sense.asnumpy())

    def on_train_epoch_begin(self, run_context):
        self._note("epoch_begin", run_context)

    def on_train_step_begin(self, run_context):
        self._note("step_begin", run_context)

    def on_train_step_end(self, run_context):
        arguments = self._note("step_end", run_context)
        self.outputs = [value.asnumpy() for value in arguments.net_outputs]
        self.scale = float(arguments.train_network.scale_sense.asnumpy())
        self.global_step = int(arguments.optimizer.global_step.asnumpy())
        self.element = arguments.train_dataset_element
        if arguments.cur_step_num == self.stop_at:
            run_context.request_stop()

    def on_train_epoch_end(self, run_context):
        self.eval_results = self._note("epoch_end", run_context).get("eval_results")

    def on_train_end(self, run_context):
        self._note("end", run_context)


@pytest.fixture(scope="module")
def config(training_folder):
    return load_config(training_folder / "config.yaml")


@pytest.fixture(scope="module")
def recorded(config, training_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("recorded") / "run"
    recorder, history = Recorder(), History()
    train(config, training_folder, out, callbacks=[recorder, history, LossMonitor(4), TimeMonitor()])
    return out, recorder, history


def test_events_come_in_model_trains_order(recorded):
    _, recorder, _ = recorded
    names = [name for name, _, _ in recorder.events]
    assert names[:4] == ["begin", "epoch_begin", "step_begin", "step_end"]
    assert names[-3:] == ["step_end", "epoch_end", "end"] and recorder.entered == 0
    assert [step for name, _, step in recorder.events if name == "step_end"] == list(range(1, 13))
    epochs = [name for name in names if "epoch" in name]
    assert len(epochs) > 2 and epochs == ["epoch_begin", "epoch_end"] * (len(epochs) // 2)
    assert [epoch for name, epoch, _ in recorder.events if name == "epoch_begin"] == [1, 2]


def test_the_keys_are_those_of_model_train(recorded):
    _, recorder, _ = recorded
    reference = Recorder()
    reference.on_train_begin = lambda context: reference._note("begin", context)
    reference.on_train_step_end = lambda context: reference._note("step_end", context)
    rows = ms.dataset.NumpySlicesDataset(
        (np.ones((4, 3), np.float32), np.ones((4, 1), np.float32)), ["x", "y"], shuffle=False
    ).batch(2)
    net = nn.Dense(3, 1)
    ms.set_context(mode=ms.GRAPH_MODE)
    model = Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1))
    model.train(1, rows, callbacks=[reference], dataset_sink_mode=False)
    for event in ("begin", "step_end"):
        assert reference.keys[event] <= recorder.keys[event], event


def test_what_callbacks_see_is_what_the_log_says(recorded):
    out, recorder, history = recorded
    log = read_lines(out / "log.jsonl")
    loss, overflow, scale = recorder.outputs
    assert loss == np.float32(log[-1]["loss"]) and not overflow and overflow.dtype == bool
    # The scale in net_outputs is the one after the step's update.
    assert scale == recorder.scale == read_checkpoint(out).meta.resume.loss_scale == 8192
    assert recorder.scale_before == 1024 and recorder.global_step == 12
    assert [field.shape for field in recorder.element] == [(4, 48)] * 5
    entry = read_lines(out / "evaluations.jsonl")[-1]
    assert math.exp(recorder.eval_results["eval_loss"]) == pytest.approx(entry["metrics"][0]["value"])
    assert history.epoch["epoch"] == [1, 2] and len(history.history["loss"]) == 2


def test_callbacks_leave_the_training_alone(recorded, tiny_run):
    out, _, _ = recorded
    name = "checkpoints/step-12/weights.safetensors"
    assert (out / name).read_bytes() == (tiny_run / name).read_bytes()


def test_a_requested_stop_ends_the_run_with_a_checkpoint(config, training_folder, tmp_path):
    recorder = Recorder(stop_at=3)
    summary = train(config, training_folder, tmp_path / "run", callbacks=[recorder])
    assert summary.steps == 3 and saved_steps(tmp_path / "run") == [3]
    assert [name for name, _, _ in recorder.events][-3:] == ["step_end", "epoch_end", "end"]


MODULE = """
from mindspore.train import Callback

class Stops(Callback):
    def on_train_step_end(self, run_context):
        print("a line of the callback")
        run_context.request_stop()

class Fails(Callback):
    def on_train_step_begin(self, run_context):
        raise ValueError("no such thing")

number = 3
"""


def test_callbacks_are_named_in_the_configuration(config, training_folder, tmp_path):
    (training_folder / "my_callbacks.py").write_text(MODULE)
    named = config.model_copy(update={"callbacks": ("my_callbacks:Stops",)})
    assert train(named, training_folder, tmp_path / "a").steps == 1
    failing = config.model_copy(update={"callbacks": ("my_callbacks:Fails",)})
    with pytest.raises(InputError, match=r"failed in on_train_step_begin: ValueError: no such thing"):
        train(failing, training_folder, tmp_path / "b")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("my_callbacks:number", r"is int, a mindspore.train.Callback is needed"),
        ("my_callbacks:Missing", r"has no 'Missing'"),
        ("nowhere:Stops", r"no module 'nowhere'"),
        ("mindspore.train:Model", r"mindspore.train:Model: TypeError"),
    ],
)
def test_what_is_no_callback_is_named(tmp_path, reference, message):
    (tmp_path / "my_callbacks.py").write_text(MODULE)
    with pytest.raises(InputError, match=message):
        load_callbacks([reference], tmp_path)


def test_the_profiler_records_the_chosen_steps(config, training_folder, tmp_path):
    plan = config.profile.model_copy(update={"first_step": 2, "steps": 2})
    short = {"profile": plan, "checkpoints": None, "evaluation": None}
    train(
        config.model_copy(update=short),
        training_folder,
        tmp_path / "run",
        profile=True,
        callbacks=[Recorder(5)],
    )
    traces = list((tmp_path / "run" / "profile").rglob("trace_view.json"))
    assert len(traces) == 1
    events = json.loads(traces[0].read_text())
    kernels = [event for event in events if event.get("ph") == "X"]
    assert kernels and any("AdamWeightDecay" in event["name"] for event in kernels)
