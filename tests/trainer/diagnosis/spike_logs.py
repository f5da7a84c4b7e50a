"""Training logs written for tests, in the formats that the readers know."""

import json
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

START = datetime(2026, 5, 1, 10, 0, 0)


def jsonl(
    path: Path, steps: int = 200, change: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda r: r
) -> Path:
    """A healthy log of `trainer train`; `change` may edit a record or leave it out."""
    noise = random.Random(7)
    with path.open("w") as stream:
        for step in range(1, steps + 1):
            record: dict[str, Any] = {
                "step": step,
                "epoch": 0,
                "loss": 2.0 + noise.gauss(0, 0.03),
                "loss_scale": 65536.0,
                "overflow": False,
                "grad_norm": 0.5 + 0.1 * noise.random(),
                "learning_rate": 1e-3 * (1 - step / 1000),
                "tokens": 1024 * step,
                "sample_ids": f"s{step}",
                "elapsed_ns": 1_000_000,
            }  # fmt: skip
            changed = change(record)
            if changed is not None:
                stream.write(json.dumps(changed) + "\n")
    return path


def mindformers(path: Path, losses: list[float], *, per_epoch: int = 1000) -> Path:
    """Lines as MindFormers prints them, ten seconds a step."""
    lines = []
    for step, loss in enumerate(losses, start=1):
        time = (START + timedelta(seconds=10 * step)).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
        lines.append(
            f"{time} - mindformers[callback.py:1] - INFO - {{ Epoch:[  1/  2], step:[{step:5d}/{per_epoch:5d}], "
            f"loss: {loss:5.3f}, per_step_time: 512ms, lr: 1.5e-05, overflow cond: False, loss_scale: 65536.0, "
            "global_norm: [0.61234], train_throughput_per_npu: 12.5T"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def megatron(
    step: int, loss: float | None, *, scale: float = 65536.0, norm: float = 0.31, lr: float = 1e-4
) -> str:
    """One line as Megatron prints it."""
    shown = f" lm loss: {loss:.6E} |" if loss is not None else ""
    return (
        f" iteration {step:8d}/  100000 | consumed samples: {step * 64:12d} | elapsed time per iteration (ms): 512.5 | "
        f"learning rate: {lr:.3E} | global batch size:    64 |{shown} loss scale: {scale:.1f} | grad norm: {norm:.3f} | "
        f"num zeros: 0.0 | number of skipped iterations: {0 if loss is not None else 1:3d} | number of nan iterations:   0 |"
    )
