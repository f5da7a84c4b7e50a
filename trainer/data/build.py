"""Data files → cleaned records → tokenizer → rows in MindRecord files, with the counts taken on the way.

No step holds more than a record and a few rows: between cleaning and tokenizing the records lie on disk, because a
tokenizer that is trained here must have seen all of them first. What grows with the data is two digests a record and,
where near duplicates are looked for, a sketch of a few kilobytes a record. Training a tokenizer keeps the different
words in memory, too (in Chinese, clauses); a large corpus is better given a tokenizer file.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
from tokenizers import Tokenizer

import evalkit
from evalkit.canonical import sha256_bytes
from evalkit.chat import Message
from evalkit.errors import InputError
from evalkit.tokenization import TextTokenizer
from trainer.config import TokenizerConfig
from trainer.configuration.data import DataConfig
from trainer.data.cleaning import Cleaner, describe
from trainer.data.corpus import Record, read_records
from trainer.data.documents import Document, encode_records
from trainer.data.frequencies import TokenCounter, WordCounter, token_counts_npz
from trainer.data.mindrecord import RowFile, write_rows
from trainer.data.packing import Row, cut, pack
from trainer.data.tokenizer import text_tokenizer, train_tokenizer

TOKENIZER, TOKEN_COUNTS, WORD_COUNTS = "tokenizer.json", "token_counts.npz", "word_counts.tsv.gz"

_LIBRARIES = ("datasketch", "ftfy", "mindspore", "numpy", "tokenizers")


@dataclass(frozen=True)
class Sources:
    """What prepared data is made of.

    Attributes:
        data, tokenizer: the configuration's parts.
        train, validation: the files.
        train_sha256, validation_sha256: their digests, in the same order.
        given_tokenizer: where none is trained.
    """

    data: DataConfig
    tokenizer: TokenizerConfig
    train: list[Path]
    validation: list[Path]
    train_sha256: list[str]
    validation_sha256: list[str]
    given_tokenizer: Tokenizer | None


def inputs(sources: Sources) -> dict[str, Any]:
    """Everything that the prepared data depends on, as JSON; places of files aren't in it."""
    given = sources.given_tokenizer
    return {
        "train": _named(sources.train, sources.train_sha256),
        "validation": _named(sources.validation, sources.validation_sha256),
        "data": sources.data.model_dump(exclude={"train", "validation"}),
        "tokenizer": sources.tokenizer.model_dump(exclude={"file"})
        if given is None
        else sha256_bytes(given.to_str().encode()),
        "libraries": {name: version(name) for name in _LIBRARIES},
        "code": _code_digest(),
    }


def _named(paths: list[Path], digests: list[str]) -> list[list[str]]:
    # A plain text's record has the file's name as its id.
    return [
        ["jsonl" if path.suffix == ".jsonl" else path.name, sha]
        for path, sha in zip(paths, digests, strict=True)
    ]


def _code_digest() -> str:
    package = Path(str(evalkit.__file__)).parent
    digest = hashlib.sha256()
    for path in (
        *sorted(Path(__file__).parent.glob("*.py")),
        package / "chat.py",
        package / "tokenization.py",
    ):
        digest.update(f"{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def build(sources: Sources, folder: Path) -> tuple[list[RowFile], list[RowFile], dict[str, Any]]:
    """Fill an empty folder: rows, tokenizer and counts.

    Returns:
        the files of the training rows, those of the validation rows, and the facts to keep with the run.

    Raises:
        InputError: a broken record (file and line are named), nothing left to learn, or a full disk.
    """
    data = sources.data
    spool = folder / "records.jsonl"
    cleaner = Cleaner(data.clean, duplicates=True)
    words = WordCounter(folder / "words.db")
    _write_records(spool, words.count(cleaner.clean(read_records(sources.train))))
    words.write(folder / WORD_COUNTS)
    train_facts = cleaner.facts()
    _check_kept("data.train", train_facts)

    raw_tokenizer = sources.given_tokenizer
    if raw_tokenizer is None:
        assert sources.tokenizer.train is not None  # the configuration holds exactly one of the two
        texts = (text for record in _read_records(spool) for text in record.texts)
        raw_tokenizer = train_tokenizer(texts, sources.tokenizer.train.vocab_size)
    tokenizer = text_tokenizer(raw_tokenizer)
    if data.pad_token_id >= tokenizer.vocab_size:
        raise InputError(
            f"data.pad_token_id: {data.pad_token_id} isn't a token; the vocabulary has {tokenizer.vocab_size}"
        )
    (folder / TOKENIZER).write_text(raw_tokenizer.to_str(pretty=True), encoding="utf-8")

    tokens = TokenCounter(tokenizer.vocab_size)
    train = _Packed(data, tokenizer, tokens)
    train_files = train.write(folder, "train", _read_records(spool))
    spool.unlink()
    (folder / TOKEN_COUNTS).write_bytes(token_counts_npz(tokens.counts))
    facts: dict[str, Any] = {"cleaning": {"train": train_facts}, "train": train.facts()}
    if not sources.validation:
        return train_files, [], facts

    checker = Cleaner(data.clean, duplicates=False)
    validation = _Packed(data, tokenizer, TokenCounter(tokenizer.vocab_size))
    validation_files = validation.write(folder, "validation", checker.clean(read_records(sources.validation)))
    _check_kept("data.validation", checker.facts())
    facts["cleaning"]["validation"] = checker.facts()
    facts["validation"] = validation.facts()
    facts["validation_in_train"] = len(checker.digests & cleaner.digests)
    return train_files, validation_files, facts


def describe_facts(facts: dict[str, Any]) -> list[str]:
    """Lines for the person at the terminal."""
    lines = []
    for name, cleaning in facts["cleaning"].items():
        part = facts[name]
        lines.append(describe(name, cleaning))
        lines.append(f"{name}: {part['tokens']:,} tokens in {part['rows']:,} rows, {part['fill']:.0%} full")
    if facts.get("validation_in_train"):
        lines.append(
            f"warning: {facts['validation_in_train']} texts of data.validation are also in data.train"
        )
    return lines


class _Packed:
    """Documents on their way into rows, counted."""

    def __init__(self, data: DataConfig, tokenizer: TextTokenizer, counter: TokenCounter) -> None:
        self._data, self._tokenizer, self._counter = data, tokenizer, counter
        self._rows = self._tokens = self._asked = 0

    def write(self, folder: Path, name: str, records: Iterable[Record]) -> list[RowFile]:
        data = self._data
        documents = encode_records(records, self._tokenizer, data.loss_on)
        pieces = cut(self._count_documents(documents), data.sequence_length, data.remainder)
        rows = pack(pieces, data.sequence_length, packing=data.packing, pad_token_id=data.pad_token_id)
        files = write_rows(folder, name, self._count_rows(rows), data.sequence_length)
        if files and not self._counter.learnt:
            raise InputError(
                f"data.{name}: no token to learn (data.loss_on is {data.loss_on}); give conversations with an "
                "assistant, or set loss_on: all"
            )
        return files

    def facts(self) -> dict[str, Any]:
        return {
            "rows": self._rows,
            "tokens": self._tokens,
            "tokens_left_out": self._asked - self._tokens,
            "fill": self._tokens / (self._rows * self._data.sequence_length),
        }

    def _count_documents(self, documents: Iterable[Document]) -> Iterator[Document]:
        for document in self._counter.count(documents):
            self._asked += len(document.ids) - 1
            yield document

    def _count_rows(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            self._rows += 1
            self._tokens += int(row.lengths.sum())
            yield row


def _check_kept(name: str, facts: dict[str, Any]) -> None:
    if not facts["records_kept"]:
        raise InputError(f"{name}: cleaning left no record ({describe(name, facts)}); change data.clean")


def _write_records(path: Path, records: Iterable[Record]) -> None:
    with path.open("wb") as stream:
        for record in records:
            content: dict[str, Any] = {"id": record.record_id}
            if record.text is not None:
                content["text"] = record.text
            else:
                content["messages"] = [[message.role, message.content] for message in record.messages]
            stream.write(orjson.dumps(content) + b"\n")


def _read_records(path: Path) -> Iterator[Record]:
    with path.open("rb") as stream:
        for line in stream:
            content = orjson.loads(line)
            messages = tuple(Message(role, text) for role, text in content.get("messages", ()))
            yield Record(content["id"], messages, content.get("text"))
