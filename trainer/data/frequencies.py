"""How often each token and each word occurs in the training data."""

import gzip
import io
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from trainer.data.corpus import Record
from trainer.data.documents import Document

# Documents are counted together until they hold this many tokens: a table of the vocabulary's size a time.
_BLOCK_TOKENS = 1 << 18


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
    """Counts words, maximal runs of non-space characters, of the records that pass through."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def count(self, records: Iterable[Record]) -> Iterator[Record]:
        """Pass the records on."""
        for record in records:
            for text in record.texts:
                self.counts.update(text.split())
            yield record


def token_counts_npz(counts: npt.NDArray[np.int64]) -> bytes:
    """An .npz archive with the array `counts`; equal counts give equal bytes."""
    stream = io.BytesIO()
    np.savez(stream, counts=counts)
    return stream.getvalue()


def word_counts_gz(counts: dict[str, int]) -> bytes:
    """Gzipped lines `word<TAB>count`, the most frequent first; equal counts give equal bytes."""
    stream = io.BytesIO()
    with gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=9, mtime=0) as packed:
        for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            packed.write(f"{word}\t{count}\n".encode())
    return stream.getvalue()
