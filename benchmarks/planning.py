"""How far the planner's predictions are off on public measurements: memory, out-of-memory rows, time ranking.

    python -m benchmarks.planning --traces FOLDER --out figures.json

FOLDER holds `strategy_sweep/`, `bigscience_train_logs/` and `memory_anchors/` (the sweep's table is BigScience's, from
train/tr11-176B-ml/chronicles-prequel.md; the logs are its experiments/gpt2-meg-ds-3d; the anchors are MindSpore's
public dry-run tutorial). Nothing is timed: the figures don't depend on the machine.
"""

import argparse
import csv
import json
from pathlib import Path
from typing import Any

from tests.trainer.planning.public_runs import (
    GPT_52B,
    QWEN_7B,
    logged_memory,
    read_sweep,
    training_52b,
    training_qwen_7b,
)
from trainer.planning.calibration import fit_memory, fit_times
from trainer.planning.memory import plan_training
from trainer.planning.settings import DeviceMemory
from trainer.planning.time_model import TEXTBOOK

_BARE = DeviceMemory(hccl_buffer_mib=0, workspace_mib=0, fragmentation=1)
_A100_TFLOPS, _A100_GIB = 312.0, 80.0


def memory_figures(traces: Path) -> dict[str, Any]:
    """The sweep with one constant a gradient type, the exact allocation of a 52B run, MindSpore's readings."""
    logged = logged_memory(traces, "meg_ds_3d_gpt2_perf_n16-ds-off.out")
    stages = plan_training(GPT_52B, training_52b(gradient_type="fp32_accumulation"), _BARE)
    states = ("parameters", "gradients", "optimizer", "receive_buffers")
    allocation = {
        stage.stage: sum(stage.phases["backward"].get(term, 0.0) for term in states) / logged[stage.stage][0]
        - 1
        for stage in stages
    }
    with (traces / "memory_anchors" / "anchors.csv").open() as stream:
        anchors = [row for row in csv.DictReader(stream) if row["id"].startswith("qwen7b")]
    readings = {}
    for row in anchors:
        if row["id"].endswith("_log"):
            continue  # a misprint
        recompute = "full" if "recompute_full" in row["id"] else "none"
        stage = plan_training(QWEN_7B, training_qwen_7b(recompute), DeviceMemory())[0]
        predicted = stage.pool_mib(fragments="actual" in row["measured_item"])
        readings[f"{row['id']} {row['measured_item']}"] = round(predicted / float(row["measured_MiB"]) - 1, 5)
    return {
        "sweep": fit_memory(read_sweep(traces), _A100_GIB).to_json(),
        "allocation_relative_error_by_stage": {stage: round(error, 8) for stage, error in allocation.items()},
        "mindspore_relative_error": readings,
    }


def time_figures(traces: Path) -> dict[str, Any]:
    """The time model on the day with most ways to cut one model, a textbook's and bare operations beside it."""
    rows = read_sweep(traces, date="02-25", nlayers="72", nhidden="14336")
    fits = {"own": None, "textbook": TEXTBOOK, "operations": ("compute",)}
    return {
        name: fit_times(rows, peak_tflops=_A100_TFLOPS, parts=parts).to_json() for name, parts in fits.items()
    }


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    figures = {"memory": memory_figures(arguments.traces), "time": time_figures(arguments.traces)}
    text = json.dumps(figures, indent=2)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
