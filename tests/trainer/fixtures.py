"""A tiny run and its bundle, made once for all tests of the trainer."""

import json
from pathlib import Path

import pytest

NAMES = ("Maria", "Tom", "Wei", "Olga")
CITIES = ("Bonn", "Graz", "Bern")


def write_records(path: Path, start: int, count: int) -> None:
    """Conversations in which the reply repeats a name and a city, and a text in two languages now and then."""
    rows = []
    for number in range(start, start + count):
        name, city = NAMES[number % 4], CITIES[number % 3]
        if number % 5 == 4:
            rows.append({"id": f"t{number}", "text": f"{name} 住在 {city}，账号 {number * 7}。"})
            continue
        messages = [
            {"role": "user", "content": f"I am {name} from {city}."},
            {"role": "assistant", "content": f"Hello {name}, how is {city}?"},
        ]
        rows.append({"id": f"d{number}", "messages": messages})
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


CONFIG = """\
version: 1
name: tiny
seed: 7
model: {family: llama, hidden_size: 16, layers: 2, heads: 4, kv_heads: 2, max_length: 64}
tokenizer: {train: {vocab_size: 300}}
data:
  train: [train.jsonl]
  validation: [validation.jsonl]
  loss_on: assistant
  sequence_length: 48
  clean: {exact_duplicates: count}
optimizer: {learning_rate: 1.0e-2, warmup_steps: 2, clip_norm: 1.0}
precision: {level: O0, loss_scale: {initial: 1024, factor: 2, window: 4}}
steps: 12
batch_size: 4
checkpoints: {every: 4, keep_last: 2, keep_best: perplexity/token}
evaluation: {every: 6, on_loss_scale_drop: true}
"""


@pytest.fixture(scope="session")
def training_folder(tmp_path_factory) -> Path:
    """A folder with config.yaml, train.jsonl and validation.jsonl."""
    folder = tmp_path_factory.mktemp("training")
    write_records(folder / "train.jsonl", 0, 60)
    write_records(folder / "validation.jsonl", 100, 20)
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def tiny_run(training_folder) -> Path:
    """A finished run of 12 steps."""
    from trainer.config import load_config
    from trainer.loop import train

    out = training_folder / "run"
    train(load_config(training_folder / "config.yaml"), training_folder, out)
    return out


@pytest.fixture(scope="session")
def tiny_export(tiny_run) -> Path:
    """The bundle of the run's last checkpoint."""
    from trainer.checkpoint import read_checkpoint
    from trainer.export.bundle import export_bundle

    out = tiny_run.parent / "bundle"
    export_bundle(read_checkpoint(tiny_run), out)
    return out
