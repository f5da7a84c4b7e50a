"""A small tokenizer, trained once."""

import pytest

from trainer.data.tokenizer import text_tokenizer, train_tokenizer

TEXTS = [
    "Please send 1250 euros to Maria.",
    "请转账 1250 欧元给玛丽。",
    'Maria\u2028said: "hello"\n\tagain',
] * 5


@pytest.fixture(scope="session")
def raw_tokenizer():
    return train_tokenizer(TEXTS, 320)


@pytest.fixture(scope="session")
def tokenizer(raw_tokenizer):
    return text_tokenizer(raw_tokenizer)
