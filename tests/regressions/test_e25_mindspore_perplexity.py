"""E25: mindspore.train.Perplexity takes probabilities, not logits, and counts padding unless a label is ignored.

Fed rightly it is an independent reference for our number; fed as its users do, it gives another one without a word.
"""

import numpy as np
import pytest
from mindspore import Tensor
from mindspore.train import Perplexity

from evalkit.backends.checkpoint import CheckpointBackend
from evalkit.metrics.evaluate import evaluate
from evalkit.metrics.token_classes import build_classifier
from evalkit.runs.evidence import Evidence
from evalkit.scenario.schema import Classes, Window
from evalkit.scoring.scorer import score_texts
from evalkit.scoring.texts import TextItem
from tests.evalkit.metrics.samples import context
from tests.evalkit.scoring.conftest import byte_level_tokenizer
from tests.trainer.models import random_model, small_spec

TEXTS = [
    "The annual fee is twelve euro.",
    "my card",
    "您的信用卡年费",
    "Please block it now, I lost it yesterday.",
]
PADDING = -100


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level_tokenizer(vocab_size=310)


@pytest.fixture(scope="module")
def model(tokenizer):
    return random_model(small_spec("llama").model_copy(update={"vocab_size": tokenizer.vocab_size}))


@pytest.fixture(scope="module")
def ours(tokenizer, model):
    """perplexity/token of the texts, scored together in packed, padded rows."""
    backend = CheckpointBackend(model, vocab_size=tokenizer.vocab_size, max_length=32)
    records = []
    score_texts(
        [TextItem(str(index), text, str(index)) for index, text in enumerate(TEXTS)],
        tokenizer,
        backend,
        Window(length=32, stride=32),
        build_classifier(Classes(), tokenizer, "t", None, None),
        on_records=records.extend,
    )
    found = {item.name: item for item in evaluate(Evidence(tuple(records)), context())}
    return found["perplexity/token"]


@pytest.fixture(scope="module")
def batch(tokenizer, model):
    """Logits [texts, length, vocabulary] of one padded batch, and its labels with padding at the end of short texts."""
    ids = [tokenizer.encode(text).ids.tolist() for text in TEXTS]
    length = max(map(len, ids))
    fed, positions, segments = (np.zeros((len(ids), length), np.int32) for _ in range(3))
    labels = np.full((len(ids), length), PADDING, np.int32)
    for row, tokens in enumerate(ids):
        fed[row, : len(tokens)] = [1, *tokens[:-1]]
        labels[row, : len(tokens)] = tokens
        positions[row, : len(tokens)], segments[row, : len(tokens)] = np.arange(len(tokens)), 1
    logits = model(Tensor(fed), Tensor(positions), Tensor(segments)).asnumpy()
    return logits.reshape(*fed.shape, -1), labels


def softmax(logits):
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def theirs(predictions, labels, **settings):
    metric = Perplexity(**settings)
    metric.update(predictions.reshape(-1, predictions.shape[-1]), labels.reshape(-1))
    return metric.eval()


def test_e25_converted_and_masked_it_is_our_perplexity(ours, batch):
    logits, labels = batch
    assert theirs(softmax(logits.astype(np.float64)), labels, ignore_label=PADDING) == pytest.approx(
        ours.value, rel=1e-5
    )
    assert ours.n == (labels != PADDING).sum()


def test_e25_logits_or_padding_give_another_number(ours, batch):
    logits, labels = batch
    assert (labels == PADDING).any()
    as_logits = theirs(logits, labels, ignore_label=PADDING)
    assert as_logits != pytest.approx(ours.value, rel=0.05)
    with_padding = theirs(softmax(logits), np.where(labels == PADDING, 0, labels))
    assert with_padding != pytest.approx(ours.value, rel=0.01)
