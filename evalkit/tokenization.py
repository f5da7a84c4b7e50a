"""The tokenizer as evalkit needs it: token ids with byte spans of the source text."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from evalkit.errors import InputError


@dataclass(frozen=True)
class EncodedText:
    """Token ids of one text and the bytes that each covers.

    Attributes:
        ids: int32, shape (tokens,).
        starts, ends: int64, shape (tokens,): byte offsets into the UTF-8 text. They tile the text: each token
            starts where the one before it ended, so that every byte belongs to exactly one token (a character
            split over several tokens is split by bytes; a character that the tokenizer drops belongs to the
            token after it, at the end of the text to the last one). A token that the tokenizer adds in front
            of the text (the space of SentencePiece) covers no byte.
        size_bytes: UTF-8 length of the text.
    """

    ids: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    size_bytes: int


class TextTokenizer:
    """A Hugging Face `tokenizers` file with the ids that frame a text."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        prefix_token: int | None,
        end_token: int | None,
        chat_template: str | None,
    ) -> None:
        self._tokenizer = tokenizer
        self.prefix_token = prefix_token
        self.end_token = end_token
        self.chat_template = chat_template

    @classmethod
    def from_file(
        cls, path: Path, *, prefix_token: int | None, end_token: int | None, chat_template: str | None
    ) -> "TextTokenizer":
        """Load `tokenizer.json`.

        Raises:
            InputError: the file isn't a tokenizer.
        """
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception for any broken file
            raise InputError(
                f"{path}: not a tokenizer file ({error}); give an undamaged tokenizer.json of this model"
            ) from None
        return cls(tokenizer, prefix_token=prefix_token, end_token=end_token, chat_template=chat_template)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest token id, added tokens included; not every id below need be in use."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    def encode_ids(self, text: str, *, special: bool) -> list[int]:
        """Token ids of `text`, nothing added.

        Args:
            text: the text.
            special: True reads special tokens written in the text as such; False (text from a user) as plain
                text.
        """
        self._tokenizer.encode_special_tokens = not special
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode(self, text: str) -> EncodedText:
        """Encode one text as it stands: see `encode_batch`."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[EncodedText]:
        """Encode texts as they stand, nothing added; special tokens written in a text are read as such.

        Args:
            texts: valid Unicode, no lone surrogates.
        """
        self._tokenizer.encode_special_tokens = False
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [self._with_spans(text, encoding) for text, encoding in zip(texts, encodings, strict=True)]

    @cached_property
    def unknown_ids(self) -> frozenset[int]:
        """Ids that stand for text outside the vocabulary: the unknown token and byte fallbacks."""
        model = self._specification["model"]
        unknown = model.get("unk_token")
        found = {unknown} if unknown is not None else set()
        if model.get("byte_fallback"):
            found |= {f"<0x{value:02X}>" for value in range(256)}
        ids = (self._tokenizer.token_to_id(token) for token in found)
        return frozenset(int(token_id) for token_id in ids if token_id is not None)

    def decode(self, ids: list[int], *, special: bool = False) -> str:
        """Text of `ids`; special tokens are left out unless `special`."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=not special))

    def token_id(self, token: str) -> int | None:
        """Id of a token by its exact string, or None."""
        found = self._tokenizer.token_to_id(token)
        return None if found is None else int(found)

    def token_text(self, token_id: int) -> str:
        """The vocabulary's own string of a token id (byte-level alphabets are not decoded)."""
        return str(self._tokenizer.id_to_token(token_id))

    @cached_property
    def _specification(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self._tokenizer.to_str())
        return content

    @cached_property
    def _token_bytes(self) -> dict[int, bytes]:
        # What each token writes. A proposal: `_with_spans` uses it where the bytes of all tokens are the
        # text.
        byte_level = "ByteLevel" in json.dumps(self._specification.get("decoder"))
        alphabet = byte_alphabet()
        table: dict[int, bytes] = {}
        for token, token_id in self._tokenizer.get_vocab(with_added_tokens=False).items():
            fallback = None if byte_level else _BYTE_FALLBACK.fullmatch(token)
            if fallback:
                table[token_id] = bytes([int(fallback[1], 16)])
            elif byte_level and all(character in alphabet for character in token):
                table[token_id] = bytes(alphabet[character] for character in token)
            else:
                table[token_id] = token.replace("\u2581", " ").encode()
        for token_id, added in self._tokenizer.get_added_tokens_decoder().items():
            table[token_id] = added.content.encode()
        return table

    def _with_spans(self, text: str, encoding: Any) -> EncodedText:
        data = text.encode()
        ids = encoding.ids
        table = self._token_bytes
        pieces = [table[token_id] for token_id in ids]
        written = b"".join(pieces)
        if written in (data, b" " + data):
            dummy = len(written) - len(data)
            sizes = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
            ends = np.maximum(np.cumsum(sizes) - dummy, 0)
        else:
            ends = _ends_from_characters(text, encoding.offsets)
        if len(ends):
            ends[-1] = len(data)
        starts = np.concatenate([np.zeros(min(1, len(ends)), dtype=np.int64), ends[:-1]])
        return EncodedText(np.asarray(ids, dtype=np.int32), starts, ends, len(data))


def byte_offsets(text: str) -> npt.NDArray[np.int64]:
    """Byte position of each character in the UTF-8 text, its length at the end; shape (characters + 1,)."""
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    sizes = 1 + (points > 0x7F).astype(np.int64) + (points > 0x7FF) + (points > 0xFFFF)
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])


_BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")


def byte_alphabet() -> dict[str, int]:
    """The characters by which byte-level BPE (GPT-2) writes bytes: printable ones as themselves, the others as the
    characters from U+0100 on, in order."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [value for value in range(256) if value not in set(kept)]
    alphabet = {chr(value): value for value in kept}
    return alphabet | {chr(0x100 + position): value for position, value in enumerate(moved)}


def _ends_from_characters(text: str, offsets: Sequence[tuple[int, int]]) -> npt.NDArray[np.int64]:
    """Byte ends of tokens from their character offsets; tokens that share a character share out its bytes."""
    byte_at = byte_offsets(text)
    spans = np.asarray(offsets, dtype=np.int64).reshape(-1, 2)
    # A run of tokens with one and the same span holds the byte tokens of a character: one byte each. Where
    # there are more tokens than bytes, the first ones were put in front by the tokenizer and cover none.
    index = np.arange(len(spans))
    opens = np.concatenate([[True], np.any(spans[1:] != spans[:-1], axis=1)])[: len(spans)]
    run = np.cumsum(opens) - 1
    first = np.flatnonzero(opens)
    length = np.diff(np.append(first, len(spans)))[run]
    begin = byte_at[spans[:, 0]]
    added = np.maximum(length - (byte_at[spans[:, 1]] - begin), 0)
    shared = begin + np.maximum(index - first[run] + 1 - added, 0)
    last = index == first[run] + length - 1
    ends = np.where(last, byte_at[spans[:, 1]], np.minimum(shared, byte_at[spans[:, 1]]))
    return np.maximum.accumulate(ends).astype(np.int64)
