"""Our side of benchmarks.training: our loop, or the same model and loss under Model.train."""

import json
import os
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np


def by_loop(settings: dict[str, Any]) -> dict[str, Any]:
    """The whole of `trainer train`, its log included."""
    from trainer.config import load_config
    from trainer.loop import train

    file = Path(settings["config"])
    config = load_config(file)
    optimizer = config.optimizer.model_copy(update={"warmup_steps": settings["warmup_steps"]})
    config = config.model_copy(
        update={
            "steps": settings["steps"],
            "optimizer": optimizer,
            "checkpoints": None,
            "evaluation": None,
        }
    )
    with tempfile.TemporaryDirectory() as out:
        train(config, file.parent, Path(out) / "run")
        log = [json.loads(line) for line in (Path(out) / "run" / "log.jsonl").open()]
    elapsed = np.diff([0, *(entry["elapsed_ns"] for entry in log)]) / 1e9
    return {"seconds": elapsed.tolist(), "losses": [entry["loss"] for entry in log]}


def by_model_train(settings: dict[str, Any]) -> dict[str, Any]:
    """MindSpore's own loop: Model.train over a cell that gives the mean loss, AdamWeightDecay and clipping."""
    import mindspore as ms
    from mindspore import nn, ops
    from mindspore.train import Callback, Model

    from evalkit.bundle import ModelSpec
    from trainer.config import load_config
    from trainer.model.decoder import CausalLM
    from trainer.model.weights import load_weights
    from trainer.optimizer import decaying
    from trainer.step import NllCell

    ms.set_context(mode=ms.GRAPH_MODE)
    batches = dict(np.load(settings["batches"]).items())
    config = json.loads((Path(settings["model"]) / "config.json").read_text())
    spec: ModelSpec = load_config(Path(settings["config"])).model.spec(config["vocab_size"])
    model = CausalLM(spec)
    load_weights(model, Path(settings["model"]) / "model.safetensors")

    class MeanLoss(nn.Cell):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(auto_prefix=False)
            self.nll = NllCell(model)
            self.sum = ops.ReduceSum()

        def construct(self, ids: Any, targets: Any, positions: Any, segments: Any, weights: Any) -> Any:
            return self.nll(ids, targets, positions, segments, weights) / self.sum(weights)

    class ClippedStep(nn.Cell):  # type: ignore[misc]
        def __init__(self, network: nn.Cell, optimizer: nn.Optimizer) -> None:
            super().__init__(auto_prefix=False)
            self.network, self.optimizer = network, optimizer
            self.differentiate = ms.value_and_grad(network, None, optimizer.parameters)

        def construct(self, *inputs: Any) -> Any:
            loss, gradients = self.differentiate(*inputs)
            gradients = ops.clip_by_global_norm(gradients, settings["clip_norm"])
            return ops.depend(loss, self.optimizer(gradients))

    class Clock(Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.seconds: list[float] = []
            self.losses: list[float] = []

        def on_train_step_begin(self, run_context: Any) -> None:
            self.began = time.perf_counter()

        def on_train_step_end(self, run_context: Any) -> None:
            self.losses.append(float(run_context.original_args().net_outputs.asnumpy()))
            self.seconds.append(time.perf_counter() - self.began)

    parameters = model.trainable_params()
    kept = decaying(parameters, ("norm", "bias"))
    optimizer = nn.AdamWeightDecay(
        [
            {
                "params": [p for p, decays in zip(parameters, kept, strict=True) if decays],
                "weight_decay": settings["weight_decay"],
            },
            {"params": [p for p, decays in zip(parameters, kept, strict=True) if not decays]},
        ],
        learning_rate=settings["rates"],
        beta2=0.95,
        eps=1e-8,
    )
    names = ("token_ids", "targets", "positions", "segments", "weights")
    rows = ms.dataset.NumpySlicesDataset(tuple(batches[name] for name in names), list(names), shuffle=False)
    clock = Clock()
    step = ClippedStep(MeanLoss(), optimizer)
    step.set_train(True)
    Model(step).train(1, rows, callbacks=[clock], dataset_sink_mode=False)
    return {"seconds": clock.seconds, "losses": clock.losses}


def main() -> None:
    """Settings on stdin, seconds and loss of each step on stdout."""
    settings = json.load(sys.stdin)
    # MindSpore's pool and the OpenMP of its kernels, before either is started.
    os.environ["OMP_NUM_THREADS"] = str(settings["threads"])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: settings["threads"]])
    with redirect_stdout(sys.stderr):
        result = by_loop(settings) if settings["kind"] == "loop" else by_model_train(settings)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
