"""What `EvalCallback` costs a training: an idle call against a step, and drift-awareness against the whole training.

    python -m benchmarks.in_training [--steps 500] [--hidden 128] [--out FILE.json]

A causal network is trained by `Model.train` with the callback in place, evaluated every 500 steps with drift-aware
validation. Times are those inside the hook, in the same process and training, so that a busy machine slows both sides.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from evalkit.metrics.context import ResampleSetup
from evalkit.scoring.texts import TextItem
from evalkit.tokenization import TextTokenizer
from evalkit.training.distributed import Ranks
from evalkit.training.drift import Drift, padded_texts
from evalkit.training.triggers import Trigger

IDLE_CALLS = 10_000
CADENCE = 500
_LENGTH, _BATCH, _VALIDATION_TEXTS = 64, 16, 400
_WORDS = [
    "card",
    "account",
    "payment",
    "transfer",
    "balance",
    "fee",
    "please",
    "send",
    "to",
    "my",
    "the",
    "is",
    "when",
    "will",
    "lost",
    "new",
    "pin",
    "abroad",
]


def texts(count: int, seed: int) -> list[str]:
    """Made-up sentences with amounts and dates among the words."""
    generator = np.random.default_rng(seed)

    def word() -> str:
        kind = generator.random()
        if kind < 0.05:
            return f"${generator.integers(5, 900)}"
        return "March 3" if kind < 0.07 else str(generator.choice(_WORDS))

    return [" ".join(word() for _ in range(generator.integers(4, 26))) + "." for _ in range(count)]


class TimedDrift(Drift):
    """Adds up the time that each part takes."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self.seconds = {"begin": 0.0, "see": 0.0, "setup": 0.0}
        self.latest: ResampleSetup | None = None
        super().__init__(*arguments, **settings)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - began

    def begin(self, texts: Sequence[TextItem], tokenizer: TextTokenizer) -> None:
        """See `Drift.begin`."""
        with self._timed("begin"):
            super().begin(texts, tokenizer)

    def see(self, arguments: Any) -> None:
        """See `Drift.see`."""
        with self._timed("see"):
            super().see(arguments)

    def setup(self, ranks: Ranks | None = None, key: int | str = 0) -> ResampleSetup:
        """See `Drift.setup`."""
        with self._timed("setup"):
            self.latest = super().setup(ranks, key)
        return self.latest


def run(steps: int, hidden: int) -> dict[str, Any]:
    """Train, then call the idle hook."""
    import mindspore as ms
    import mindspore.dataset as ds
    from mindspore import nn
    from mindspore.train import Callback, Model

    from benchmarks.network import CausalNetwork, LossCell
    from evalkit.metrics.evaluate import evaluate
    from evalkit.resampling.features import entity_density, token_length
    from evalkit.training import (
        EvalCallback,
        EveryNSteps,
        JsonlSink,
        OnLossScaleDrop,
        OnLossSpike,
        validation,
    )
    from trainer.data.tokenizer import train_tokenizer

    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tokenizer.json"
        train_tokenizer(texts(400, 0), vocab_size=500).save(str(file))
        items = [
            TextItem(f"t{index}", text, f"t{index}") for index, text in enumerate(texts(_VALIDATION_TEXTS, 1))
        ]
        check = validation(items, file, max_length=_LENGTH)
    rows = np.zeros((2048, _LENGTH + 1), dtype=np.int32)
    for row, text in zip(rows, texts(len(rows), 2), strict=True):
        ids = check.tokenizer.encode(text).ids[: _LENGTH + 1]
        row[: len(ids)] = ids
    data = ds.NumpySlicesDataset({"token_ids": rows[:, :-1], "labels": rows[:, 1:]}, shuffle=True)
    data = data.batch(_BATCH, drop_remainder=True)
    network = CausalNetwork(check.tokenizer.vocab_size, hidden, _LENGTH)
    loss_cell = LossCell(network)
    drift = TimedDrift(
        lambda arguments: padded_texts(arguments.train_dataset_element[0].asnumpy(), 0),
        [token_length(check.tokenizer, "benchmark"), entity_density()],
    )
    # The third sees the loss of every step: what a user may have running idly.
    triggers: list[Trigger] = [EveryNSteps(CADENCE), OnLossScaleDrop(), OnLossSpike()]
    callback = EvalCallback(network, check, [JsonlSink(os.devnull)], triggers=triggers, drift=drift)

    class Steps(Callback):  # type: ignore[misc]
        """Time of each step, without the hooks of other callbacks."""

        def __init__(self) -> None:
            super().__init__()
            self.seconds: list[float] = []
            self.context: Any = None

        def on_train_step_begin(self, run_context: Any) -> None:
            self._began = time.perf_counter()

        def on_train_step_end(self, run_context: Any) -> None:
            outputs = run_context.original_args().net_outputs
            outputs.asnumpy()  # a step is over when its loss is there
            self.seconds.append(time.perf_counter() - self._began)
            self.context = run_context

    watch = Steps()
    model = Model(loss_cell, optimizer=nn.Adam(loss_cell.trainable_params(), 1e-3))
    epochs = -(-steps // data.get_dataset_size())
    began = time.perf_counter()
    model.train(epochs, data, callbacks=[watch, callback], dataset_sink_mode=False)
    total = time.perf_counter() - began
    trained = len(watch.seconds)
    evaluations = len(callback.records)
    if any(record.error for record in callback.records):
        raise RuntimeError(callback.records[0].error)
    seen, drift.seconds["see"] = drift.seconds["see"], 0.0
    idle = _idle_seconds(callback, watch.context, trained)
    # The slice `resampled` of the metrics, which isn't part of Drift.
    assert callback._backend is not None  # the training has been
    evidence = check.measure(callback._backend).evidence
    costs = []
    for context in (check.context, replace(check.context, resample=drift.latest)):
        began = time.perf_counter()
        evaluate(evidence, context)
        costs.append(time.perf_counter() - began)
    step = statistics.median(watch.seconds)
    metrics = max(0.0, costs[1] - costs[0]) * evaluations
    in_hook = seen + drift.seconds["setup"] + metrics
    return {
        "parameters": sum(parameter.size for parameter in network.trainable_params()),
        "steps": trained,
        "evaluations": evaluations,
        "median_step_ms": 1e3 * step,
        "idle_call_ms": 1e3 * idle,
        "idle_call_of_step": idle / step,
        "training_s": total,
        "drift_see_s": seen,
        "drift_setup_s": drift.seconds["setup"],
        "drift_metrics_s": metrics,
        "drift_of_training": in_hook / total,
        "effective_sample_size": callback.records[-1].effective_sample_size,
    }


def _idle_seconds(callback: Any, run_context: Any, step: int) -> float:
    """Mean time of a call after a step at which no trigger fires; drift's part of it included."""
    arguments = run_context.original_args()
    before = arguments.cur_step_num
    calls = 0
    began = time.perf_counter()
    while calls < IDLE_CALLS:
        step += 1
        if step % CADENCE == 0:
            continue
        arguments["cur_step_num"] = step
        callback.on_train_step_end(run_context)
        calls += 1
    found = (time.perf_counter() - began) / calls
    arguments["cur_step_num"] = before
    return found


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=CADENCE)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    result = run(given.steps, given.hidden)
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    if given.out is not None:
        given.out.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
