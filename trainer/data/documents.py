"""Records as token ids, with what the loss looks at."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from evalkit.chat import ChatRenderer
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
    records: Iterable[Record], tokenizer: TextTokenizer, loss_on: Literal["assistant", "all"]
) -> Iterator[Document]:
    """Encode records: a conversation by the chat template, a text between prefix and end token.

    Args:
        records: what to encode.
        tokenizer: with prefix and end token, and a chat template.
        loss_on: in conversations, learn the assistant's tokens (its end token included) or all; in texts always all.
    """
    renderer = ChatRenderer(tokenizer)
    for record in records:
        yield _encode(record, tokenizer, renderer, loss_on)


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
