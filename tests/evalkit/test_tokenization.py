"""Byte spans of tokens tile the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from evalkit.errors import InputError
from evalkit.tokenization import TextTokenizer, byte_offsets
from tests.evalkit.scoring.conftest import byte_level_tokenizer

BYTE_LEVEL = byte_level_tokenizer()
UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def pieces(tokenizer: TextTokenizer, text: str) -> list[bytes]:
    encoded = tokenizer.encode(text)
    data = text.encode()
    assert encoded.size_bytes == len(data)
    spans = list(zip(encoded.starts, encoded.ends, strict=True))
    assert [start for start, _ in spans[1:]] == [end for _, end in spans[:-1]]
    assert not spans or (spans[0][0], spans[-1][1]) == (0, len(data))
    return [data[start:end] for start, end in spans]


@given(UNICODE)
def test_byte_level_spans_tile_any_text(text):
    assert b"".join(pieces(BYTE_LEVEL, text)) == text.encode()


@given(UNICODE)
def test_sentencepiece_spans_tile_any_text(stories_tokenizer, text):
    assert b"".join(pieces(stories_tokenizer, text)) == text.encode()


@pytest.fixture(scope="module")
def stories_tokenizer(shared_data) -> TextTokenizer:
    file = shared_data / "models" / "stories260K" / "hf" / "tokenizer.json"
    return TextTokenizer.from_file(file, prefix_token=1, end_token=None, chat_template=None)


def test_a_character_split_over_tokens_is_split_by_bytes():
    assert pieces(BYTE_LEVEL, "a😀")[-4:] == [bytes([byte]) for byte in "😀".encode()]


def test_special_tokens_written_in_a_text_are_read_as_such():
    encoded = BYTE_LEVEL.encode("fee<|end|>fee")
    assert 2 in encoded.ids
    assert pieces(BYTE_LEVEL, "fee<|end|>fee")[list(encoded.ids).index(2)] == b"<|end|>"
    assert 2 not in BYTE_LEVEL.encode_ids("fee<|end|>fee", special=False)


def test_byte_fallback(stories_tokenizer):
    assert pieces(stories_tokenizer, "a 中") == [b"a", b" ", *[bytes([byte]) for byte in "中".encode()]]
    # After a special token the added space makes plain concatenation fail: character offsets take over.
    assert pieces(stories_tokenizer, "x</s>中") == [
        b"",
        b"x",
        b"</s>",
        b"",
        *[bytes([byte]) for byte in "中".encode()],
    ]
    assert len(stories_tokenizer.unknown_ids) == 257


def test_characters_that_the_tokenizer_drops_belong_to_a_neighbour():
    inner = Tokenizer(models.WordLevel({"fee": 0, "card": 1, "[UNK]": 2}, unk_token="[UNK]"))
    inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = TextTokenizer(inner, prefix_token=None, end_token=None, chat_template=None)
    assert pieces(tokenizer, " Fee  CARD né \n") == [b" Fee", b"  CARD", " né \n".encode()]
    assert tokenizer.unknown_ids == {2}


def test_byte_offsets():
    assert list(byte_offsets("aé中😀")) == [0, 1, 3, 6, 10]


def test_broken_file(tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    with pytest.raises(InputError, match="not a tokenizer file"):
        TextTokenizer.from_file(file, prefix_token=None, end_token=None, chat_template=None)
