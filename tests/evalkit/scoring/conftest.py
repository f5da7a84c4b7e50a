"""What the scoring tests share: a small byte-level tokenizer and classes over it."""

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from evalkit.metrics.counts import Counts
from evalkit.metrics.token_classes import TokenClassifier, build_classifier
from evalkit.scenario.schema import Classes, Domain
from evalkit.tokenization import TextTokenizer

CORPUS = [
    "The annual fee of your credit card is twelve euro.",
    "Please transfer 250 euro to the savings account of Maria.",
    "您的信用卡年费是多少？请帮我查询余额。",
    "I lost my card yesterday and want to block it now.",
] * 4


def byte_level_tokenizer(vocab_size: int = 400, *, prefix_token: int | None = 1) -> TextTokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|pad|>", "<|bos|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return TextTokenizer(tokenizer, prefix_token=prefix_token, end_token=2, chat_template=None)


@pytest.fixture(scope="session")
def tokenizer() -> TextTokenizer:
    return byte_level_tokenizer()


@pytest.fixture(scope="session")
def classifier(tokenizer: TextTokenizer) -> TokenClassifier:
    frequencies = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for text in CORPUS:
        np.add.at(frequencies, tokenizer.encode(text).ids, 1)
    words = {word: 4 for text in CORPUS for word in text.split()}
    counts = Counts("corpus", "ab12", frequencies, None, words)
    spec = Classes(domain=Domain(glossary="terms.txt"))
    return build_classifier(spec, tokenizer, "t", counts, ["credit card", "annual fee", "信用卡"])
