"""Training rows per second: MindRecord as the trainer reads it, JSON Lines tokenised on the fly, HDF5; and what a
training step waits for its data.

    python -m benchmarks.data --out result.json

All sides give the same batches' worth of rows (the project's banking data, both languages, shuffled) as numpy arrays, one
epoch a pass, from files that the operating system has in memory. Sides take turns; the best pass of each counts. HDF5
reads a batch's rows in one call, sorted, as it likes best. Waiting is measured in real steps of the demo's small model.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from evalkit.chat import Message
from scenarios.generate import training_files
from trainer.config import TrainConfig
from trainer.data.corpus import Record
from trainer.data.cursor import Cursor
from trainer.data.documents import encode_records
from trainer.data.order import epoch_order
from trainer.data.packing import Batch, Row, batch_of, batches, cut, pack
from trainer.data.pipeline import TrainingData, prepare

_SEED = 2024


def config_for(folder: Path) -> TrainConfig:
    """The demo's model and row length over both languages' data, which is written into `folder`."""
    files = training_files(_SEED)
    with (folder / "train.jsonl").open("w", encoding="utf-8") as stream:
        for locale in ("en", "zh"):
            for line in files[f"{locale}/train.jsonl"].splitlines():
                record = json.loads(line)
                stream.write(
                    json.dumps(record | {"id": f"{locale}/{record['id']}"}, ensure_ascii=False) + "\n"
                )
    return TrainConfig.model_validate(
        {
            "version": 1,
            "name": "benchmark",
            "seed": _SEED,
            "model": {"family": "llama", "hidden_size": 96, "layers": 3, "heads": 4, "max_length": 256},
            "tokenizer": {"train": {"vocab_size": 768}},
            "data": {"train": ["train.jsonl"], "sequence_length": 224},
            "optimizer": {"learning_rate": 3e-3},
            "steps": 1000,
            "batch_size": 4,
        }
    )


class Jsonl:
    """Lines read in shuffled order by their places in the file, tokenised and packed as they come."""

    def __init__(self, path: Path, data: TrainingData, config: TrainConfig) -> None:
        self._path, self._data, self._config = path, data, config
        with path.open("rb") as stream:
            sizes = [len(line) for line in stream]
        self._starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])

    def epoch(self, number: int) -> Iterator[Batch]:
        """One epoch's batches."""
        data = self._config.data
        documents = encode_records(self._records(number), self._data.tokenizer, data.loss_on)
        rows = pack(cut(documents, data.sequence_length), data.sequence_length, packing=True)
        return batches(rows, data.sequence_length, self._config.batch_size)

    def _records(self, epoch: int) -> Iterator[Record]:
        with self._path.open("rb") as stream:
            for index in epoch_order(len(self._starts), seed=_SEED, epoch=epoch):
                stream.seek(self._starts[index])
                value = orjson.loads(stream.readline())
                messages = tuple(Message(**message) for message in value.get("messages", ()))
                yield Record(value["id"], messages, value.get("text"))


class Hdf5:
    """The same rows in one HDF5 file."""

    def __init__(self, path: Path, data: TrainingData, config: TrainConfig) -> None:
        import h5py

        self._config = config
        length = config.data.sequence_length
        rows = _rows(data)
        with h5py.File(path, "w") as file:
            for name, kind in (("token_ids", np.int32), ("targets", np.int32), ("loss_mask", np.uint8)):
                values = np.stack([getattr(row, name) for row in rows])
                file.create_dataset(name, data=values, dtype=kind, chunks=(1, length))
            lengths = file.create_dataset("lengths", (len(rows),), dtype=h5py.vlen_dtype(np.int32))
            names = file.create_dataset("record_ids", (len(rows),), dtype=h5py.string_dtype())
            for index, row in enumerate(rows):
                lengths[index], names[index] = row.lengths, orjson.dumps(row.record_ids).decode()
        self._file = h5py.File(path, "r")
        self._count = len(rows)

    def epoch(self, number: int) -> Iterator[Batch]:
        """One epoch's batches."""
        size, length = self._config.batch_size, self._config.data.sequence_length
        order = epoch_order(self._count, seed=_SEED, epoch=number)
        fields = [self._file[name] for name in ("token_ids", "targets", "loss_mask", "lengths", "record_ids")]
        for start in range(0, self._count, size):
            numbers = np.sort(order[start : start + size])
            parts = zip(*(field[numbers] for field in fields), strict=True)
            rows = [Row(*part[:4], orjson.loads(part[4])) for part in parts]
            yield batch_of(rows, length, size)


def _rows(data: TrainingData) -> list[Row]:
    from trainer.data.mindrecord import read_rows

    return list(read_rows(data.folder, data.rows, np.arange(sum(file.rows for file in data.rows))))


def _seconds(epoch: Iterator[Batch]) -> tuple[float, int]:
    began = time.perf_counter()
    rows = sum(int(batch.segments.any(axis=1).sum()) for batch in epoch)
    return time.perf_counter() - began, rows


def waiting(streams: dict[str, Iterator[Batch]], step: Any, steps: int, first: int) -> dict[str, Any]:
    """What a training step waits for its next batch, after the steps that compile.

    The sides take turns, so that each sees the same machine; a share is of its own waiting and the steps of all.
    """
    waited = dict.fromkeys(streams, 0.0)
    worked = 0.0
    number = first
    for _ in range(steps):
        for name, stream in streams.items():
            began = time.perf_counter()
            batch = next(stream)
            ready = time.perf_counter()
            step(number, [batch])
            waited[name] += ready - began
            worked += time.perf_counter() - ready
            number += 1
    step_s = worked / (steps * len(streams))
    return {
        "step_ms": step_s * 1e3,
        "wait_ms": {name: seconds / steps * 1e3 for name, seconds in waited.items()},
        "share": {name: seconds / steps / (seconds / steps + step_s) for name, seconds in waited.items()},
    }


def measure(passes: int, steps: int) -> dict[str, Any]:
    """All figures."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ["EVALKIT_HOME"] = str(folder / "home")
        config = config_for(folder)
        began = time.perf_counter()
        data = prepare(config, folder)
        prepared_s = time.perf_counter() - began
        began = time.perf_counter()
        prepare(config, folder)
        found_s = time.perf_counter() - began
        sides: dict[str, Any] = {
            "mindrecord": lambda number: data.epoch(config, number),
            "jsonl": Jsonl(folder / "train.jsonl", data, config).epoch,
            "hdf5": Hdf5(folder / "rows.h5", data, config).epoch,
        }
        speeds = dict.fromkeys(sides, 0.0)
        for number in range(passes):
            for name, epoch in sides.items():
                seconds, rows = _seconds(epoch(number))
                speeds[name] = max(speeds[name], rows / seconds)
        result: dict[str, Any] = {
            "rows": sum(file.rows for file in data.rows),
            "positions_a_row": config.data.sequence_length,
            "prepare_s": {"first": prepared_s, "again": found_s},
            "rows_per_s": speeds,
            "ratio": {
                f"mindrecord/{name}": speeds["mindrecord"] / speeds[name] for name in ("jsonl", "hdf5")
            },
            "waiting": _waiting(config, data, sides, steps),
        }
        return result


def _waiting(config: TrainConfig, data: TrainingData, sides: dict[str, Any], steps: int) -> dict[str, Any]:
    import mindspore as ms

    from trainer.model.decoder import CausalLM
    from trainer.model.weights import initialise
    from trainer.step import TrainStep

    spec = config.model.spec(data.tokenizer.vocab_size)
    ms.set_context(mode=ms.GRAPH_MODE)
    model = CausalLM(spec)
    initialise(model, spec, _SEED)
    model.set_train(True)
    step = TrainStep(model, config)
    own = (batch for _, batch in data.batches(config, Cursor()))
    for number, batch in enumerate(islice(own, 3), start=1):
        step(number, [batch])
    streams = {"mindrecord": own, "jsonl": sides["jsonl"](0), "hdf5": sides["hdf5"](0)}
    return waiting(streams, step, steps, first=4)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result = measure(arguments.passes, arguments.steps)
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
