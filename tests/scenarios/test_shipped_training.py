"""The shipped corpus is learnt: the candidate's configuration reaches the loss that scenarios/README.md states."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
STEPS, STATED_LOSS = 200, 0.5


@pytest.mark.slow
def test_the_loss_falls_to_the_stated_value_in_the_stated_steps(tmp_path):
    from trainer.config import load_config
    from trainer.loop import train

    data = tmp_path / "build" / "banking"
    generate = [sys.executable, "-m", "scenarios.generate", "--out", str(data)]
    subprocess.run(generate, cwd=PROJECT, check=True, capture_output=True)
    folder = tmp_path / "scenarios" / "train"
    folder.mkdir(parents=True)
    text = (PROJECT / "scenarios" / "train" / "candidate.yaml").read_text(encoding="utf-8")
    (folder / "candidate.yaml").write_text(text, encoding="utf-8")
    # The schedule stays that of 1,400 steps; the run ends earlier.
    config = load_config(folder / "candidate.yaml").model_copy(
        update={"evaluation": None, "checkpoints": None}
    )

    from mindspore.train import Callback

    class Stop(Callback):
        def on_train_step_end(self, run_context):
            if run_context.original_args().cur_step_num == STEPS:
                run_context.request_stop()

    train(config, folder, tmp_path / "run", callbacks=[Stop()])
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert len(losses) == STEPS and losses[0] > 5
    assert sum(losses[-50:]) / 50 < STATED_LOSS
