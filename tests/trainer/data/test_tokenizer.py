"""The tokenizer: deterministic, and no text is out of its alphabet."""

import pytest

from evalkit.errors import InputError
from tests.trainer.data.conftest import TEXTS
from trainer.data.tokenizer import SPECIAL_TOKENS, load_tokenizer, train_tokenizer


def test_the_tokenizer_is_deterministic(raw_tokenizer):
    assert train_tokenizer(TEXTS, 320).to_str() == raw_tokenizer.to_str()


def test_every_text_comes_back(tokenizer):
    for text in [*TEXTS, "Ünïcödé 🙂 \x00 unseen 汉字"]:
        assert tokenizer.decode(tokenizer.encode_ids(text, special=False)) == text


def test_special_tokens_have_fixed_ids_and_bos_is_added_once(raw_tokenizer, tokenizer):
    assert [raw_tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(6))
    assert raw_tokenizer.encode("hello").ids.count(1) == 1 and raw_tokenizer.encode("hello").ids[0] == 1
    assert 1 not in tokenizer.encode_ids("hello", special=True)
    assert tokenizer.encode_ids("<|end|>", special=True) == [2] and 2 not in tokenizer.encode_ids(
        "<|end|>", special=False
    )


def test_a_tokenizer_file_is_read_again(raw_tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(raw_tokenizer.to_str(), encoding="utf-8")
    assert load_tokenizer(path).to_str() == raw_tokenizer.to_str()
    path.write_text(raw_tokenizer.to_str().replace("<|end|>", "<|stop|>"), encoding="utf-8")
    with pytest.raises(InputError, match=r"<\|end\|> must have id 2"):
        load_tokenizer(path)
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="not a tokenizer file"):
        load_tokenizer(path)
