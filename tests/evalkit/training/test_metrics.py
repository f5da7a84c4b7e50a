"""evalkit's token metrics inside Model.eval and Model.fit."""

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn
from mindspore.train import Model

from evalkit.errors import InputError
from evalkit.training.metrics import METRICS, TokenMetric

WIDTH = 11


@pytest.fixture
def batch():
    generator = np.random.default_rng(4)
    logits = generator.normal(0, 2, (5, 7, WIDTH)).astype(np.float32)
    labels = generator.integers(0, WIDTH, (5, 7)).astype(np.int32)
    labels[1, 3:] = -100
    labels[4] = -100
    return logits, labels


def reference(logits, labels) -> dict[str, float]:
    """By numpy in float64."""
    logits = logits.astype(np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    asked = labels != -100
    target = np.take_along_axis(logprobs, np.where(asked, labels, 0)[..., None], -1)
    others = logprobs.copy()
    np.put_along_axis(others, np.where(asked, labels, 0)[..., None], -np.inf, -1)
    rank = 1 + (logprobs > target).sum(-1)
    return {
        "perplexity/token": np.exp(-target[..., 0][asked].mean()),
        "logits/entropy": -(np.exp(logprobs) * logprobs).sum(-1)[asked].mean(),
        "logits/margin": (target[..., 0] - others.max(-1))[asked].mean(),
        "logits/rank": rank[asked].mean(),
        "logits/top_k_accuracy": (rank == 1)[asked].mean(),
    }


@pytest.mark.parametrize("name", METRICS)
def test_values_are_numpys_whatever_the_batches(name, batch):
    logits, labels = batch
    expected = reference(logits, labels)[name]
    whole, parts, flat = TokenMetric(name), TokenMetric(name), TokenMetric(name)
    whole.update(ms.Tensor(logits), ms.Tensor(labels))
    for rows in ([0], [1, 2, 3], [4]):
        parts.update(ms.Tensor(logits[rows]), ms.Tensor(labels[rows]))
    flat.update(ms.Tensor(logits.reshape(-1, WIDTH)), ms.Tensor(labels.reshape(-1)))
    assert whole.eval() == pytest.approx(expected, rel=1e-5)
    assert parts.eval() == pytest.approx(whole.eval(), rel=1e-6)
    assert flat.eval() == pytest.approx(expected, rel=1e-5)
    assert whole.result().clusters == 4 and whole.result().n == 24


def test_clear_begins_anew(batch):
    metric = TokenMetric()
    metric.update(*map(ms.Tensor, batch))
    first = metric.eval()
    metric.clear()
    assert np.isnan(metric.eval()) and metric.result().reason == "nothing was evaluated"
    metric.update(*map(ms.Tensor, batch))
    assert metric.eval() == first


def test_a_number_that_is_not_finite_is_never_left_out_silently(batch):
    logits, labels = batch
    logits[2, 0, 0] = np.inf
    metric = TokenMetric()
    metric.update(ms.Tensor(logits), ms.Tensor(labels))
    assert np.isnan(metric.eval()) and metric.result().coverage < 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda logits, labels: (logits, labels[:, :3]), "don't fit"),
        (lambda logits, labels: (logits, labels.astype(np.float32)), "labels are integers"),
        (lambda logits, labels: (logits, labels + 100), "outside of the 11 ids"),
        (lambda logits, labels: (np.full_like(logits, 1 / WIDTH), labels), "these are probabilities"),
    ],
)
def test_wrong_inputs_are_one_line(change, message, batch):
    with pytest.raises(InputError, match=message):
        TokenMetric().update(*map(ms.Tensor, change(*batch)))


@pytest.mark.parametrize("inputs", [("a", [1]), ([[1.0]], 3), (None, [1])])
def test_what_holds_no_numbers_is_one_line(inputs):
    with pytest.raises(InputError, match="a tensor, an array or a list is needed"):
        TokenMetric().update(*inputs)


def test_an_empty_batch_adds_nothing_and_the_vocabulary_stays_one(batch):
    logits, labels = map(ms.Tensor, batch)
    metric = TokenMetric()
    metric.update(logits, labels)
    before = metric.eval()
    metric.update(batch[0][:0], batch[1][:0])
    assert metric.eval() == before
    with pytest.raises(InputError, match="logits of 7 ids after others of 11"):
        metric.update(batch[0][..., :7], batch[1] % 7)
    metric.clear()
    metric.update(batch[0][..., :7], batch[1] % 7)
    assert metric.eval() > 1


def test_other_names_are_refused():
    with pytest.raises(InputError, match="needs more than logits and labels"):
        TokenMetric("perplexity/oov")
    with pytest.raises(InputError, match="perplexity/tokn"):
        TokenMetric("perplexity/tokn")


class Bigram(nn.Cell):
    """Token ids (rows, length) to logits (rows, length, vocabulary)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WIDTH, WIDTH)

    def construct(self, token_ids):
        return self.table(token_ids)


class Loss(nn.Cell):
    def construct(self, logits, labels):
        return nn.CrossEntropyLoss()(logits.reshape(-1, WIDTH), labels.reshape(-1))


def rows(count: int) -> ds.Dataset:
    ids = np.random.default_rng(0).integers(0, WIDTH, (count, 9)).astype(np.int32)
    return ds.NumpySlicesDataset({"token_ids": ids[:, :-1], "labels": ids[:, 1:]}, shuffle=False).batch(4)


def test_model_eval_and_fit_take_them():
    """The last batch is short, and counts for what it holds."""
    ms.set_seed(3)
    network = Bigram()
    metrics = {"perplexity": TokenMetric("perplexity/token"), "top1": TokenMetric("logits/top_k_accuracy")}
    model = Model(network, Loss(), nn.Adam(network.trainable_params(), 0.05), metrics=metrics)
    found = model.eval(rows(10), dataset_sink_mode=False)
    network.set_train(False)
    logits, labels = zip(
        *((network(ids).asnumpy(), labels.asnumpy()) for ids, labels in rows(10).create_tuple_iterator()),
        strict=True,
    )
    expected = reference(np.concatenate(logits), np.concatenate(labels))
    assert found["perplexity"] == pytest.approx(expected["perplexity/token"], rel=1e-5)
    assert found["top1"] == pytest.approx(expected["logits/top_k_accuracy"])
    model.fit(3, rows(40), rows(10), dataset_sink_mode=False)
    assert model.eval(rows(10), dataset_sink_mode=False)["perplexity"] != found["perplexity"]
