"""Training tokens per second of our loop against PyTorch: the same model, weights, batches, AdamW, clipping, threads.

    EVALKIT_PEERS_PYTHON=.../bin/python python -m benchmarks.training CONFIG.yaml --out result.json

CONFIG is a training configuration of the Llama family. Both sides start from the same weights and see the same batches
in the same order, so that their losses can be compared step by step; the first steps, which compile, aren't timed.
Beside our loop the same step under `mindspore.train.Model.train` is measured. Each side has a process of its own, and
they take turns: each figure is the best of its passes.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.scoring import PEERS_VARIABLE, run_side

PEER_SCRIPT = Path(__file__).with_name("peer_training.py")
_WARM_UP = 5
_BATCH_FIELDS = ("token_ids", "targets", "positions", "segments", "weights")


def prepare_run(config_file: Path, steps: int, threads: int, scratch: Path) -> dict[str, Any]:
    """Batches, start weights and the learning rates that every side uses, as files and numbers."""
    from benchmarks.hf_folder import write_hf_folder
    from trainer.checkpoint import read_checkpoint
    from trainer.config import load_config
    from trainer.data.cursor import Cursor
    from trainer.data.pipeline import prepare
    from trainer.loop import train
    from trainer.model.decoder import CausalLM
    from trainer.model.weights import initialise, weights_of
    from trainer.schedule import learning_rate

    config = load_config(config_file)
    warmup = min(config.optimizer.warmup_steps, steps // 2)
    config = config.model_copy(
        update={
            "steps": steps,
            "optimizer": config.optimizer.model_copy(update={"warmup_steps": warmup}),
            "checkpoints": None,
            "evaluation": None,
        }
    )
    data = prepare(config, config_file.parent)
    stream = data.batches(config, Cursor())
    batches = [next(stream)[1] for _ in range(steps)]
    stacked = {name: np.stack([getattr(batch, name) for batch in batches]) for name in _BATCH_FIELDS}
    np.savez(scratch / "batches.npz", **stacked)
    # One step makes a checkpoint to take the architecture from; the start values replace its weights.
    one = config.model_copy(
        update={"steps": 1, "optimizer": config.optimizer.model_copy(update={"warmup_steps": 0})}
    )
    checkpoint = read_checkpoint(train(one, config_file.parent, scratch / "one").checkpoint)
    write_hf_folder(checkpoint, scratch / "hf")
    model = CausalLM(checkpoint.meta.model)
    initialise(model, checkpoint.meta.model, config.seed)
    from safetensors.numpy import save_file

    save_file(weights_of(model), scratch / "hf" / "model.safetensors", metadata={"format": "pt"})
    return {
        "config": str(config_file.resolve()),
        "steps": steps,
        "warmup_steps": warmup,
        "batches": str(scratch / "batches.npz"),
        "model": str(scratch / "hf"),
        "rates": [learning_rate(step, config) for step in range(1, steps + 1)],
        "weight_decay": config.optimizer.weight_decay,
        "clip_norm": config.optimizer.clip_norm,
        "threads": threads,
        "tokens": [batch.tokens for batch in batches],
        "scratch": str(scratch),
    }


def compare(config_file: Path, steps: int, passes: int, threads: int, python: str) -> dict[str, Any]:
    """Measure all sides, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        settings = prepare_run(config_file, steps, threads, Path(folder))
        own = [sys.executable, "-m", "benchmarks.own_training"]
        sides = {
            "loop": (own, {"kind": "loop"}),
            "model_train": (own, {"kind": "model_train"}),
            "torch": ([python, str(PEER_SCRIPT)], {}),
        }
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
        for _ in range(passes):
            for name, (command, extra) in sides.items():
                runs[name].append(run_side(command, {**settings, **extra}))
    tokens = sum(settings["tokens"][_WARM_UP:])
    rates = {
        name: max(tokens / sum(run["seconds"][_WARM_UP:]) for run in side) for name, side in runs.items()
    }
    losses = {name: np.array(side[0]["losses"]) for name, side in runs.items()}
    return {
        "config": config_file.name,
        "threads": settings["threads"],
        "steps": steps,
        "tokens_per_s": {name: round(rate, 1) for name, rate in rates.items()},
        "median_step_ms": {
            name: round(min(1e3 * float(np.median(run["seconds"][_WARM_UP:])) for run in side), 2)
            for name, side in runs.items()
        },
        "ratio": {
            "loop_to_torch": round(rates["loop"] / rates["torch"], 3),
            "loop_to_model_train": round(rates["loop"] / rates["model_train"], 3),
        },
        "largest_relative_difference_of_loss_to_torch": float(
            np.max(np.abs(losses["loop"] / losses["torch"] - 1))
        ),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path, help="training configuration of the Llama family")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, help="write the JSON here too")
    options = parser.parse_args()
    python = os.environ.get(PEERS_VARIABLE)
    if python is None:
        parser.error(f"set {PEERS_VARIABLE} to the Python of an environment with torch and transformers")
    result = json.dumps(
        compare(options.config, options.steps, options.passes, options.threads, python), indent=2
    )
    if options.out is not None:
        options.out.write_text(result + "\n", encoding="utf-8")
    sys.stdout.write(result + "\n")


if __name__ == "__main__":
    main()
