"""From the configuration's files to everything the training loop needs to know about its data."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from evalkit.canonical import sha256_file
from evalkit.errors import InputError
from evalkit.tokenization import TextTokenizer
from trainer.config import DataConfig, TrainConfig
from trainer.data.corpus import read_records
from trainer.data.cursor import Cursor
from trainer.data.documents import (
    Document,
    count_tokens,
    count_words,
    encode_records,
    token_counts_npz,
    word_counts_gz,
)
from trainer.data.packing import Batch, Piece, batches, cut, epoch_rows, pack
from trainer.data.tokenizer import load_tokenizer, text_tokenizer, train_tokenizer

# An export is compared with its checkpoint on at least this many tokens, where the data has them.
_PROBE_TOKENS = 4096


@dataclass(frozen=True)
class TrainingData:
    """Encoded data of one run.

    Attributes:
        tokenizer: with the ids that frame a text.
        tokenizer_json: its file.
        documents, pieces: of the training files.
        validation: fixed batches of the validation files; empty where there are none.
        probe: one batch of real text for parity measurements.
        token_counts, word_counts: files with the training frequencies.
        train_sha256, validation_sha256: digests of the files, in the order of the configuration.
    """

    tokenizer: TextTokenizer
    tokenizer_json: bytes
    documents: list[Document]
    pieces: list[Piece]
    validation: list[Batch]
    probe: Batch
    token_counts: bytes
    word_counts: bytes
    train_sha256: list[str]
    validation_sha256: list[str]

    def batches(self, config: TrainConfig, start: Cursor) -> Iterator[tuple[Cursor, Batch]]:
        """Batches without end from `start` on, each with its place.

        An epoch holds every token once, in an order that seed and epoch alone decide.
        """
        for epoch in count(start.epoch):
            for number, batch in enumerate(self.epoch(config, epoch)):
                if epoch > start.epoch or number >= start.batch:
                    yield Cursor(epoch, number), batch

    def epoch(self, config: TrainConfig, epoch: int) -> Iterator[Batch]:
        """Batches of one epoch: every token once, in an order that seed and epoch alone decide."""
        length, packing = config.data.sequence_length, config.data.packing
        rows = epoch_rows(self.pieces, length, packing=packing, seed=config.seed, epoch=epoch)
        return batches(self.documents, rows, length, config.batch_size)


def prepare(config: TrainConfig, folder: Path) -> TrainingData:
    """Read, tokenize and pack.

    Args:
        config: the configuration.
        folder: relative paths start here (the configuration file's folder).

    Raises:
        InputError: a data or tokenizer file is missing or broken; names file and line.
    """
    data = config.data
    train_files = [folder / name for name in data.train]
    validation_files = [folder / name for name in data.validation]
    records = read_records(train_files)
    validation_records = read_records(validation_files)
    if config.tokenizer.file is not None:
        raw_tokenizer = load_tokenizer(folder / config.tokenizer.file)
    else:
        assert config.tokenizer.train is not None  # the configuration holds exactly one of the two
        texts = (text for record in records for text in record.texts)
        raw_tokenizer = train_tokenizer(texts, config.tokenizer.train.vocab_size)
    tokenizer_json = raw_tokenizer.to_str(pretty=True).encode()
    tokenizer = text_tokenizer(raw_tokenizer)
    documents = encode_records(records, tokenizer, data.loss_on)
    validation = encode_records(validation_records, tokenizer, data.loss_on) if validation_records else []
    return TrainingData(
        tokenizer=tokenizer,
        tokenizer_json=tokenizer_json,
        documents=documents,
        pieces=cut(documents, data.sequence_length),
        validation=_fixed_batches(validation, data, config.batch_size),
        probe=_probe(validation or documents, data),
        token_counts=token_counts_npz(count_tokens(documents, tokenizer.vocab_size)),
        word_counts=word_counts_gz(count_words(records)),
        train_sha256=[sha256_file(path) for path in train_files],
        validation_sha256=[sha256_file(path) for path in validation_files],
    )


def _fixed_batches(documents: list[Document], data: DataConfig, batch_size: int) -> list[Batch]:
    rows = pack(cut(documents, data.sequence_length), data.sequence_length, packing=data.packing)
    return list(batches(documents, rows, data.sequence_length, batch_size))


def _probe(documents: list[Document], data: DataConfig) -> Batch:
    rows = pack(cut(documents, data.sequence_length), data.sequence_length, packing=True)
    tokens, count = 0, 0
    while count < len(rows) and tokens < _PROBE_TOKENS:
        tokens += sum(piece.length for piece in rows[count])
        count += 1
    if tokens == 0:
        raise InputError("data: every document is empty; give records with text")
    return next(batches(documents, rows[:count], data.sequence_length, count))
