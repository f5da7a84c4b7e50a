"""Records as token ids, with what the loss looks at, and how often each token and word occurs."""

import gzip
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from evalkit.chat import ChatRenderer
from evalkit.errors import InputError
from evalkit.tokenization import TextTokenizer
from trainer.data.corpus import Record


@dataclass(frozen=True)
class Document:
    """One record as the model sees it.

    Attributes:
        record_id: of the record.
        ids: int32, shape (tokens,), prefix and end token included.
        loss: bool, shape (tokens,): True where the token is to be predicted; never the first one.
    """

    record_id: str
    ids: npt.NDArray[np.int32]
    loss: npt.NDArray[np.bool_]


def encode_records(
    records: Sequence[Record], tokenizer: TextTokenizer, loss_on: Literal["assistant", "all"]
) -> list[Document]:
    """Encode records: a conversation by the chat template, a text between prefix and end token.

    Args:
        records: what to encode.
        tokenizer: with prefix and end token, and a chat template.
        loss_on: in conversations, learn the assistant's tokens (its end token included) or all; in texts always all.

    Raises:
        InputError: no token is left to learn.
    """
    renderer = ChatRenderer(tokenizer)
    documents = [_encode(record, tokenizer, renderer, loss_on) for record in records]
    if not any(document.loss.any() for document in documents):
        raise InputError(
            f"data: no token to learn (data.loss_on is {loss_on}); give conversations with an assistant, "
            "or set loss_on: all"
        )
    return documents


def _encode(
    record: Record, tokenizer: TextTokenizer, renderer: ChatRenderer, loss_on: Literal["assistant", "all"]
) -> Document:
    if record.text is None:
        chat = renderer.conversation(record.messages)
        ids = chat.ids
        loss = chat.reply if loss_on == "assistant" else [True] * len(ids)
    else:
        frame = [[] if token is None else [token] for token in (tokenizer.prefix_token, tokenizer.end_token)]
        ids = [*frame[0], *tokenizer.encode_ids(record.text, special=False), *frame[1]]
        loss = [True] * len(ids)
    # Nothing stands before the first token, so it can't be predicted.
    return Document(
        record.record_id, np.array(ids, dtype=np.int32), np.array([False, *loss[1:]], dtype=np.bool_)
    )


def count_tokens(documents: Iterable[Document], vocab_size: int) -> npt.NDArray[np.int64]:
    """How often each token id occurs in the documents, special tokens included; shape (vocab_size,)."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for document in documents:
        counts += np.bincount(document.ids, minlength=vocab_size)
    return counts


def count_words(records: Iterable[Record]) -> dict[str, int]:
    """How often each word, a maximal run of non-space characters, occurs in the records' texts."""
    counts: Counter[str] = Counter()
    for record in records:
        for text in record.texts:
            counts.update(text.split())
    return dict(counts)


def token_counts_npz(counts: npt.NDArray[np.int64]) -> bytes:
    """An .npz archive with the array `counts`; equal counts give equal bytes."""
    stream = io.BytesIO()
    np.savez(stream, counts=counts)
    return stream.getvalue()


def word_counts_gz(counts: dict[str, int]) -> bytes:
    """Gzipped lines `word<TAB>count`, the most frequent first; equal counts give equal bytes."""
    rows = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    text = "".join(f"{word}\t{count}\n" for word, count in rows)
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)
