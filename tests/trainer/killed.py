"""Training processes that are killed at random times and taken up again."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.trainer.fixtures import write_records

PROJECT = Path(__file__).resolve().parents[2]

# A checkpoint after each step: at a random time a process is often in the middle of one.
CONFIG = """\
version: 1
name: killed
seed: 11
out: run
model: {{family: llama, hidden_size: 8, layers: 1, heads: 2, max_length: 32, dropout: 0.1}}
tokenizer: {{train: {{vocab_size: 280}}}}
data: {{train: [train.jsonl], validation: [validation.jsonl], loss_on: all, sequence_length: 32}}
optimizer: {{learning_rate: 1.0e-2, warmup_steps: 2}}
precision: {{level: O0, loss_scale: {{initial: 1024, window: 7}}}}
steps: {steps}
batch_size: 2
accumulation: 2
checkpoints: {{every: 1, keep_last: 2, keep_best: perplexity/token}}
evaluation: {{every: 5}}
"""


def write_config(folder: Path, steps: int) -> Path:
    """A folder with data and config.yaml."""
    folder.mkdir(parents=True)
    write_records(folder / "train.jsonl", 0, 40)
    write_records(folder / "validation.jsonl", 100, 8)
    config = folder / "config.yaml"
    config.write_text(CONFIG.format(steps=steps))
    return config


def start(config: Path, out: Path, *options: str) -> subprocess.Popen:
    """`trainer train` in a process of its own."""
    command = [sys.executable, "-m", "trainer", "train", str(config), "--out", str(out), *options]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    return subprocess.Popen(
        command,
        env=environment,
        cwd=config.parent,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


def lines_in(out: Path) -> int:
    """Steps that the log holds."""
    log = out / "log.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def kill_at_random(config: Path, out: Path, generator: random.Random) -> int:
    """Resume, and kill the process at a random time after it made its first step; the exit code.

    After ten more steps at the latest: a fast machine would be through before the last kill.
    """
    before = lines_in(out)
    process = start(config, out, "--resume")
    while process.poll() is None and lines_in(out) <= before:
        time.sleep(0.002)
        before = min(before, lines_in(out))  # the log was cut back
    end = time.monotonic() + generator.uniform(0, 0.15)
    while time.monotonic() < end and lines_in(out) <= before + 10:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode
