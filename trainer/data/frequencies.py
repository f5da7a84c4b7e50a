"""How often each token and each word occurs in the training data."""

import errno
import gzip
import io
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainer.data.corpus import Record
from trainer.data.documents import Document

# Documents are counted together until they hold this many tokens: a table of the vocabulary's size a time.
_BLOCK_TOKENS = 1 << 18
# Different words in memory before they go to the table on disk.
_RECENT_WORDS = 1 << 18


class TokenCounter:
    """Counts token ids, special tokens included, of the documents that pass through.

    Attributes:
        learnt: tokens that the loss looks at.
    """

    def __init__(self, vocab_size: int) -> None:
        self._counts = np.zeros(vocab_size, dtype=np.int64)
        self._waiting: list[npt.NDArray[np.int32]] = []
        self._waiting_tokens = 0
        self.learnt = 0

    def count(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Pass the documents on."""
        for document in documents:
            self._waiting.append(document.ids)
            self._waiting_tokens += len(document.ids)
            self.learnt += int(np.count_nonzero(document.loss))
            if self._waiting_tokens >= _BLOCK_TOKENS:
                self._add()
            yield document

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Occurrences by token id, shape (vocab_size,)."""
        self._add()
        return self._counts

    def _add(self) -> None:
        if self._waiting:
            self._counts += np.bincount(np.concatenate(self._waiting), minlength=len(self._counts))
        self._waiting, self._waiting_tokens = [], 0


class WordCounter:
    """Counts words, maximal runs of non-space characters, of the records that pass through.

    Chinese has no spaces: its words here are clauses, nearly all different, together as large as the text. So the table
    is on disk, and only what came last is in memory.
    """

    def __init__(self, scratch: Path) -> None:
        """Count into a new database file at `scratch`."""
        self._scratch = scratch
        self._table = sqlite3.connect(scratch, isolation_level=None)
        # A scratch file: nothing is lost with it that a second run wouldn't make again.
        self._table.execute("PRAGMA journal_mode = OFF")
        self._table.execute("PRAGMA synchronous = OFF")
        self._table.execute("CREATE TABLE words (word BLOB PRIMARY KEY, count INTEGER) WITHOUT ROWID")
        self._recent: Counter[str] = Counter()

    def count(self, records: Iterable[Record]) -> Iterator[Record]:
        """Pass the records on."""
        for record in records:
            for text in record.texts:
                self._recent.update(text.split())
            if len(self._recent) >= _RECENT_WORDS:
                self._spill()
            yield record

    def write(self, path: Path) -> None:
        """Write gzipped lines `word<TAB>count`, the most frequent first, and remove the scratch file.

        Equal counts give equal bytes.
        """
        self._spill()
        rows = self._table.execute("SELECT word, count FROM words ORDER BY count DESC, word")
        with (
            path.open("wb") as stream,
            gzip.GzipFile("", "wb", compresslevel=9, fileobj=stream, mtime=0) as packed,
        ):
            for word, count in rows:
                packed.write(word + f"\t{count}\n".encode())
        self._table.close()
        self._scratch.unlink()

    def _spill(self) -> None:
        rows = [(word.encode(), count) for word, count in sorted(self._recent.items())]
        self._recent.clear()
        try:
            self._table.execute("BEGIN")
            self._table.executemany(
                "INSERT INTO words VALUES (?, ?) ON CONFLICT (word) DO UPDATE SET count = count + excluded.count",
                rows,
            )
            self._table.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise OSError(errno.ENOSPC, str(error), str(self._scratch)) from None


def token_counts_npz(counts: npt.NDArray[np.int64]) -> bytes:
    """An .npz archive with the array `counts`; equal counts give equal bytes."""
    stream = io.BytesIO()
    np.savez(stream, counts=counts)
    return stream.getvalue()
