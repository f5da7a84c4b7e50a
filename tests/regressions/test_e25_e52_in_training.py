"""Public faults of evaluations inside trainings, on `EvalCallback` and its parts: E05, E25, E49 to E52."""

import math
import random
import threading
from dataclasses import replace

import mindspore as ms
import numpy as np
import pytest
from mindspore.train import Perplexity

from evalkit.backends.checkpoint import CheckpointBackend
from evalkit.errors import InputError
from evalkit.training.callback import EvalCallback
from evalkit.training.description import batch_difference
from evalkit.training.distributed import Ranks
from evalkit.training.metrics import TokenMetric
from evalkit.training.selection import KeepBest
from evalkit.training.triggers import EveryNSteps
from tests.evalkit.training.driver import Nowhere, drive, network
from tests.evalkit.training.fixtures import small_validation
from tests.evalkit.training.table import TableBackend

pytestmark = pytest.mark.usefixtures("pynative")


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    return small_validation(tmp_path_factory.mktemp("validation"))


@pytest.fixture(scope="module")
def net(check):
    return network(check)


def token_counts(check) -> list[int]:
    """Scored tokens of each text: nothing stands before its first one."""
    return [len(check.tokenizer.encode(item.text).ids) - 1 for item in check.items]


def test_e05_e51_every_text_counts_once_by_its_tokens(check, net):
    callback = EvalCallback(net, check, [Nowhere()], triggers=[EveryNSteps(1)], metrics=["perplexity/token"])
    drive(callback, steps=1)
    (metric,) = callback.records[0].metrics
    counts = token_counts(check)
    assert metric["n"] == sum(counts) and len(set(counts)) > 1
    # By numpy, text for text: a mean over texts would be another number.
    net.set_train(False)
    losses = []
    for item in check.items:
        ids = check.tokenizer.encode(item.text).ids
        logits = net(ms.Tensor(ids[None].astype(np.int32))).asnumpy()[0].astype(np.float64)
        logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        losses.append(-logprobs[np.arange(len(ids) - 1), ids[1:]].sum())
    assert metric["value"] == pytest.approx(math.exp(sum(losses) / sum(counts)), rel=1e-5)
    by_text = math.exp(np.mean([loss / count for loss, count in zip(losses, counts, strict=True)]))
    assert abs(by_text - metric["value"]) > 1e-3


def test_e25_mindspores_perplexity_needs_probabilities_and_a_mask():
    generator = np.random.default_rng(2)
    logits = generator.normal(0, 2, (3, 5, 9)).astype(np.float32)
    labels = generator.integers(0, 9, (3, 5)).astype(np.int32)
    labels[2, 2:] = -100
    ours = TokenMetric("perplexity/token")
    ours.update(logits, labels)
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    with pytest.raises(InputError, match="probabilities"):
        TokenMetric("perplexity/token").update(shares, labels)
    theirs = Perplexity(ignore_label=0)
    theirs.update(ms.Tensor(shares[labels >= 0]), ms.Tensor(np.where(labels < 0, 0, labels)[labels >= 0]))
    kept = (labels > 0).sum()
    assert kept < (labels >= 0).sum()  # their mask is an id, which may be a genuine one
    again = TokenMetric("perplexity/token", ignore_label=0)
    again.update(logits, np.where(labels < 0, 0, labels))
    assert again.eval() == pytest.approx(theirs.eval(), rel=1e-5)
    assert abs(ours.eval() - again.eval()) > 1e-3


@pytest.mark.parametrize("size", [2, 3])
def test_e49_results_do_not_depend_on_the_number_of_ranks(check, tmp_path, size):
    """24 texts, a rank's share isn't a whole number of batches; nothing is padded, nothing counted twice."""
    alone = check.measure(TableBackend(check.tokenizer.vocab_size, 128))
    found = {}

    def work(rank: int) -> None:
        backend = TableBackend(check.tokenizer.vocab_size, 128)
        found[rank] = Ranks(rank, size, tmp_path, "run", 30.0).measure(check, backend, 1)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in range(size):
        assert found[rank].metrics == alone.metrics
        assert len(found[rank].evidence.samples) == len(check.items)


def test_e50_generators_and_modes_are_put_back(check, net):
    """The loss jumped after an evaluation: generators had moved on, and dropout was off."""

    def state():
        return (
            random.getstate(),
            [part.tobytes() if isinstance(part, np.ndarray) else part for part in np.random.get_state()],
            ms.get_rng_state().asnumpy().tobytes(),
            [cell.training for _, cell in net.cells_and_names()],
            ms.get_context("mode"),
        )

    def save(step):  # a user's function that draws, and evaluates for itself
        random.random()
        np.random.rand()
        net.set_train(False)

    net.set_train(True)
    net.norm.set_train(False)
    before = state()
    callback = EvalCallback(
        net, check, [Nowhere()], triggers=[EveryNSteps(1)], keep_best=KeepBest("perplexity/token", save)
    )
    drive(callback, steps=1)
    assert callback.records[0].error is None and callback._decisions._keep_best.best is not None
    assert state() == before


def test_e52_a_text_scores_alone_as_in_company(check, net):
    backend = CheckpointBackend(net, vocab_size=check.tokenizer.vocab_size, max_length=128)
    assert batch_difference(check, backend) < 1e-5
    shuffled = replace(check, items=tuple(reversed(check.items)))
    values = [one.measure(backend).find("perplexity/token").value for one in (check, shuffled)]
    assert values[0] == pytest.approx(values[1], rel=1e-6)
