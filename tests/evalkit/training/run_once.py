"""One training in a process of its own: `python -m tests.evalkit.training.run_once` with JSON settings on stdin.

Prints the digest of weights and optimizer state, the loss scale and the loss of every step.
"""

import hashlib
import json
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.train import Callback, Model

from evalkit.resampling.features import entity_density, token_length
from evalkit.resampling.reweighting import ReweightingSettings
from evalkit.training.callback import EvalCallback
from evalkit.training.drift import Drift
from evalkit.training.record import JsonlSink
from evalkit.training.triggers import AtEnd, EveryNSteps, OnLossScaleDrop
from tests.evalkit.training.fixtures import small_validation, token_rows
from tests.evalkit.training.tutorial import LossCell, LossScaleStep, SeededDropout, TutorialLM, dataset


class Losses(Callback):
    """Keeps the loss and the loss scale of every step, as a user's monitor would."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.scales: list[float] = []

    def on_train_step_end(self, run_context):
        outputs = run_context.original_args().net_outputs
        parts = outputs if isinstance(outputs, tuple) else (outputs,)
        self.losses.append(float(parts[0].asnumpy()))
        if len(parts) > 2:
            self.scales.append(float(parts[2].asnumpy()))


class Poison(Callback):
    """From step `first` on, the weights' scale makes float16 overflow: a loss-scale collapse."""

    def __init__(self, network, first: int) -> None:
        super().__init__()
        self.network, self.first = network, first

    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == self.first:
            weight = self.network.head.weight
            weight.set_data(ms.Tensor(weight.asnumpy() * np.float32(1e4)))


def main() -> None:
    """Train, print JSON."""
    settings = json.load(sys.stdin)
    folder = Path(settings["folder"])
    ms.set_context(mode=ms.GRAPH_MODE if settings["mode"] == "graph" else ms.PYNATIVE_MODE)
    ms.set_seed(7)
    ms.manual_seed(7)
    np.random.seed(7)
    check = small_validation(folder)
    dropout = SeededDropout(0.3)
    network = TutorialLM(check.tokenizer.vocab_size, dropout)
    watched, callbacks = Losses(), []
    loss_cell = LossCell(network)
    optimizer = nn.Adam(loss_cell.trainable_params(), 1e-2)
    if settings["precision"] == "float16":
        network.to_float(ms.float16)
        network.norm.to_float(ms.float32)
        scale = nn.DynamicLossScaleUpdateCell(2.0**24, 2, 1000)
        step = LossScaleStep(loss_cell, optimizer, scale)
        step.set_train()
        model = Model(step)
    else:
        model = Model(loss_cell, optimizer=optimizer)
    callbacks.append(watched)
    if settings.get("poison"):
        callbacks.append(Poison(network, settings["poison"]))
    callback = None
    if settings["evaluate_every"]:
        triggers = [EveryNSteps(settings["evaluate_every"]), OnLossScaleDrop(), AtEnd()]
        sink = JsonlSink(folder / "evaluations.jsonl")
        drift = Drift(
            lambda arguments: list(arguments.train_dataset_element[0].asnumpy()),
            [entity_density(), token_length(check.tokenizer, "tests")],
            settings=ReweightingSettings(min_effective=1, max_uncovered=0.99, max_distance=0.99),
        )
        callback = EvalCallback(network, check, [sink], triggers=triggers, drift=drift)
        callbacks.append(callback)
    data = dataset(token_rows(check))
    model.train(settings["steps"] // 8, data, callbacks=callbacks, dataset_sink_mode=False)
    digest = hashlib.sha256()
    for parameter in sorted(
        [*network.get_parameters(), *optimizer.get_parameters()], key=lambda item: item.name
    ):
        digest.update(parameter.name.encode() + parameter.asnumpy().tobytes())
    records = [] if callback is None else callback.records
    result = {
        "state": digest.hexdigest(),
        "losses": watched.losses,
        "scales": watched.scales,
        "records": [(record.step, record.trigger, record.reason, record.error) for record in records],
    }
    sys.stdout.write("\n" + json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
