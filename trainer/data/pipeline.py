"""From the configuration's files to everything the training loop needs to know about its data."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from evalkit.canonical import sha256_file
from evalkit.console import say
from evalkit.home import evalkit_home
from evalkit.tokenization import TextTokenizer
from trainer.config import TrainConfig
from trainer.configuration.data import DataConfig
from trainer.data.build import TOKEN_COUNTS, TOKENIZER, WORD_COUNTS, Sources, build, describe_facts, inputs
from trainer.data.cache import prepared
from trainer.data.corpus import check_readable
from trainer.data.cursor import Cursor
from trainer.data.mindrecord import RowFile, read_rows
from trainer.data.order import epoch_order, rank_batches
from trainer.data.packing import Batch, Row, batch_of, batches
from trainer.data.tokenizer import load_tokenizer, text_tokenizer

# An export is compared with its checkpoint on at least this many tokens, where the data has them.
_PROBE_TOKENS = 4096


@dataclass(frozen=True)
class TrainingData:
    """Prepared data of one run. The training rows stay on disk; the validation batches are in memory.

    Attributes:
        tokenizer: with the ids that frame a text.
        tokenizer_json: its file.
        folder, rows: the prepared data, and the files with its training rows.
        validation: fixed batches of the validation files; empty where there are none.
        probe: one batch of real text for parity measurements.
        token_counts, word_counts: files with the training frequencies.
        train_sha256, validation_sha256: digests of the files, in the order of the configuration.
        facts: what cleaning and packing did, and the prepared folder's name; as JSON.
    """

    tokenizer: TextTokenizer
    tokenizer_json: bytes
    folder: Path
    rows: list[RowFile]
    validation: list[Batch]
    probe: Batch
    token_counts: bytes
    word_counts: bytes
    train_sha256: list[str]
    validation_sha256: list[str]
    facts: dict[str, Any]

    def batches(
        self, config: TrainConfig, start: Cursor, *, rank: int = 0, size: int = 1
    ) -> Iterator[tuple[Cursor, Batch]]:
        """Batches without end from `start` on, each with its place; nothing before `start` is read.

        An epoch holds every row once over all ranks, in an order that seed and epoch alone decide. All ranks have the
        same number of batches; in the last one of an epoch some rows, or all, may be empty.

        Args:
            config: seed, rows a batch (of each rank) and their length.
            start: the first batch to give.
            rank, size: this data-parallel process and how many there are.
        """
        for epoch in count(start.epoch):
            first = start.batch if epoch == start.epoch else 0
            parts = self._epoch(config, epoch, first, rank, size)
            for number, batch in enumerate(parts, start=first):
                yield Cursor(epoch, number), batch

    def epoch(self, config: TrainConfig, epoch: int) -> Iterator[Batch]:
        """Batches of one epoch of a single process."""
        return self._epoch(config, epoch, 0, 0, 1)

    def _epoch(self, config: TrainConfig, epoch: int, first: int, rank: int, size: int) -> Iterator[Batch]:
        order = epoch_order(sum(file.rows for file in self.rows), seed=config.seed, epoch=epoch)
        plan = rank_batches(order, config.batch_size, rank=rank, size=size)[first:]
        data = config.data
        rows = read_rows(self.folder, self.rows, plan[plan >= 0])
        for numbers in plan:
            part = [next(rows) for _ in range(np.count_nonzero(numbers >= 0))]
            yield batch_of(part, data.sequence_length, config.batch_size, data.pad_token_id)


def prepare(config: TrainConfig, folder: Path) -> TrainingData:
    """Clean, tokenize and pack, or take what an earlier run with the same data and settings left.

    Prepared data is in `$EVALKIT_HOME/data`.

    Args:
        config: the configuration.
        folder: relative paths start here (the configuration file's folder).

    Raises:
        InputError: a data or tokenizer file is missing or broken; names file and line.
    """
    data = config.data
    train_files = [folder / name for name in data.train]
    validation_files = [folder / name for name in data.validation]
    for path in (*train_files, *validation_files):
        check_readable(path)
    sources = Sources(
        data=data,
        tokenizer=config.tokenizer,
        train=train_files,
        validation=validation_files,
        train_sha256=[sha256_file(path) for path in train_files],
        validation_sha256=[sha256_file(path) for path in validation_files],
        given_tokenizer=None
        if config.tokenizer.file is None
        else load_tokenizer(folder / config.tokenizer.file),
    )
    home = evalkit_home().absolute() / "data"
    place, meta = prepared(home, inputs(sources), lambda staging: build(sources, staging))
    for line in describe_facts(meta.facts):
        say(line)
    length, pad = data.sequence_length, data.pad_token_id
    return TrainingData(
        tokenizer=text_tokenizer(load_tokenizer(place / TOKENIZER)),
        tokenizer_json=(place / TOKENIZER).read_bytes(),
        folder=place,
        rows=meta.train,
        validation=list(batches(_all_rows(place, meta.validation), length, config.batch_size, pad)),
        probe=_probe(place, meta.validation or meta.train, data),
        token_counts=(place / TOKEN_COUNTS).read_bytes(),
        word_counts=(place / WORD_COUNTS).read_bytes(),
        train_sha256=sources.train_sha256,
        validation_sha256=sources.validation_sha256,
        facts={"prepared": place.name, **meta.facts},
    )


def _probe(folder: Path, files: list[RowFile], data: DataConfig) -> Batch:
    rows: list[Row] = []
    tokens = 0
    for row in _all_rows(folder, files):
        rows.append(row)
        tokens += int(row.lengths.sum())
        if tokens >= _PROBE_TOKENS:
            break
    return batch_of(rows, data.sequence_length, len(rows), data.pad_token_id)


def _all_rows(folder: Path, files: list[RowFile]) -> Iterator[Row]:
    return read_rows(folder, files, np.arange(sum(file.rows for file in files)))
