"""One trial of the pressure test: builds the model, runs two steps on random tokens, prints its peak; reads JSON on stdin."""

import json
import resource
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np

from evalkit.backends.runtime import load_mindspore
from evalkit.errors import InputError


def main() -> int:
    """Run the trial that stdin describes (see `pressure.training_description`)."""
    # Should memory run out after all, the kernel takes this process first.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    described = json.load(sys.stdin)
    from pydantic import ValidationError

    from trainer.config import TrainConfig

    try:
        config = TrainConfig.model_validate(
            {
                "version": 1,
                "name": "pressure",
                "model": described["model"],
                "tokenizer": {"file": "none"},
                "data": {"train": ["none"], "sequence_length": described["sequence_length"]},
                "optimizer": {"learning_rate": 1e-4},
                "steps": 2,
                "batch_size": described["batch_size"],
                "parallel": {"recompute": described["recompute"]},
            }
        )
    except ValidationError as error:
        raise InputError(str(error.errors(include_url=False)[0]["msg"])) from None
    load_mindspore()
    import mindspore as ms

    from trainer.data.packing import Batch
    from trainer.setup import build_step

    if ms.get_context("device_target") != "CPU":
        raise InputError(
            "a process's resident set says nothing about a device's memory; take MindSpore's dry run"
        )
    ms.set_context(mode=ms.GRAPH_MODE)
    spec = config.model.spec(described["model"]["vocab_size"])
    step = build_step(config, spec, 0)
    rows, length = config.batch_size, config.data.sequence_length
    tokens = np.random.default_rng(0).integers(0, spec.vocab_size, (rows, length + 1), dtype=np.int32)
    batch = Batch(
        token_ids=tokens[:, :-1],
        targets=tokens[:, 1:],
        positions=np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length)).copy(),
        segments=np.ones((rows, length), np.int32),
        weights=np.ones((rows, length), np.float32),
        record_ids=[],
        tokens=rows * length,
    )
    for number in (1, 2):
        step(number, [batch])
    # Linux counts ru_maxrss in KiB.
    print(json.dumps({"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
