"""Evaluations inside trainings that know nothing of this project."""

import json

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.train import Model

from evalkit.errors import InputError
from evalkit.training.callback import EvalCallback
from evalkit.training.record import JsonlSink
from evalkit.training.selection import EarlyStop, KeepBest
from evalkit.training.triggers import AtEnd, EveryEpoch, EveryNSteps
from tests.evalkit.training.driver import Nowhere
from tests.evalkit.training.fixtures import small_validation, token_rows
from tests.evalkit.training.tutorial import LossCell, TutorialLM, dataset


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    return small_validation(tmp_path_factory.mktemp("validation"))


@pytest.fixture(autouse=True)
def graph_mode():
    before = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=before)


class Losses(ms.train.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.values = []

    def on_train_step_end(self, run_context):
        self.values.append(float(run_context.original_args().net_outputs.asnumpy()))


def train(check, make_callback=None, *, epochs=2, dropout=0.3):
    """Train the tutorial's network; (network, losses, callback)."""
    ms.set_seed(7)
    ms.manual_seed(7)
    np.random.seed(7)
    network = TutorialLM(check.tokenizer.vocab_size, nn.Dropout(p=dropout))
    loss_cell = LossCell(network)
    optimizer = nn.Adam(loss_cell.trainable_params(), 1e-2)
    losses = Losses()
    callback = None if make_callback is None else make_callback(network)
    callbacks = [losses] if callback is None else [losses, callback]
    model = Model(loss_cell, optimizer=optimizer)
    model.train(epochs, dataset(token_rows(check)), callbacks=callbacks, dataset_sink_mode=False)
    return network, losses.values, callback


def test_records_hold_metrics_trigger_and_reason(check, tmp_path):
    sink = JsonlSink(tmp_path / "deep" / "evaluations.jsonl")
    train(
        check,
        lambda net: EvalCallback(
            net,
            check,
            [sink],
            triggers=[EveryEpoch(), AtEnd()],
            metrics=["perplexity/token", "bits_per_byte"],
        ),
    )
    lines = [json.loads(line) for line in sink.path.read_text().splitlines()]
    assert [(line["step"], line["epoch"], line["trigger"]) for line in lines] == [
        (8, 0, "every_epoch"),
        (16, 1, "every_epoch"),
    ]
    values = [{metric["name"]: metric for metric in line["metrics"]} for line in lines]
    assert set(values[0]) == {"perplexity/token", "bits_per_byte"}
    assert values[1]["perplexity/token"]["value"] < values[0]["perplexity/token"]["value"]
    assert values[0]["perplexity/token"]["interval"]["low"] < values[0]["perplexity/token"]["value"]
    assert values[0]["perplexity/token"]["signature"] == check.context.signatures["text"]
    assert lines[0]["weights_sha256"] != lines[1]["weights_sha256"]


def test_it_measures_what_numpy_does(check, tmp_path):
    """The whole text seen at once, float64 sums: an independent way to the same perplexity."""
    network, _, callback = train(
        check, lambda net: EvalCallback(net, check, [Nowhere()], triggers=[AtEnd()]), epochs=1, dropout=0.0
    )
    network.set_train(False)
    nll = tokens = 0.0
    for item in check.items:
        ids = check.tokenizer.encode(item.text).ids
        assert len(ids) <= 128
        logits = network(ms.Tensor(ids[None].astype(np.int32))).asnumpy().astype(np.float64)[0]
        logprobs = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        logprobs -= logits.max(-1, keepdims=True)
        nll -= logprobs[np.arange(len(ids) - 1), ids[1:]].sum()
        tokens += len(ids) - 1
    (record,) = callback.records
    (value,) = [metric["value"] for metric in record.metrics if metric["name"] == "perplexity/token"]
    assert value == pytest.approx(np.exp(nll / tokens), rel=1e-5)


def test_a_network_that_returns_its_loss_needs_one_function(check):
    with pytest.raises(InputError, match=r"takes 2 inputs.*logits="):
        train(check, lambda net: EvalCallback(LossCell(net), check, [Nowhere()]), epochs=1)
    *_, callback = train(
        check,
        lambda net: EvalCallback(
            LossCell(net),
            check,
            [Nowhere()],
            triggers=[AtEnd()],
            logits=lambda cell, token_ids: cell.network(token_ids),
        ),
        epochs=1,
    )
    assert callback.records[0].error is None


def test_logits_narrower_than_the_tokenizer_are_refused(check):
    with pytest.raises(InputError, match=r"logits are 300 wide, the tokenizer has \d+ ids|256 wide"):
        train(
            check,
            lambda net: EvalCallback(TutorialLM(256, nn.Dropout(p=0.1)), check, [Nowhere()]),
            epochs=1,
        )


def test_perturbed_texts_are_measured_at_each_evaluation(check):
    specs = [{"perturb": "typos", "rate": 0.2}]
    name = "robustness/typos/perplexity/token"
    *_, callback = train(
        check,
        lambda net: EvalCallback(
            net, check, [Nowhere()], triggers=[EveryEpoch()], metrics=[name], robustness=specs
        ),
        epochs=1,
    )
    (record,) = callback.records
    assert record.error is None
    found = next(metric for metric in record.metrics if metric["slice"] is None)
    assert found["name"] == name and found["perturbed"] > found["clean"] > 1
    assert found["value"] == pytest.approx(found["perturbed"] / found["clean"] - 1, rel=1e-12)
    assert found["interval"]["low"] < found["value"] and found["texts_changed"] > 20


@pytest.mark.parametrize("policy", ["continue", "stop"])
def test_a_failing_evaluation_is_recorded(check, policy, monkeypatch, capsys):
    def fail(*_):
        raise RuntimeError("out of memory\nlong trace")

    monkeypatch.setattr("evalkit.training.evaluation.score_texts", lambda *_, **__: fail())
    _, losses, callback = train(
        check,
        lambda net: EvalCallback(net, check, [Nowhere()], triggers=[EveryNSteps(2)], on_error=policy),
        epochs=1,
    )
    assert callback.records[0].error == "RuntimeError: out of memory"
    assert len(losses) == (8 if policy == "continue" else 2)
    assert "evaluation after step 2 failed" in capsys.readouterr().err


def test_keep_best_and_early_stop_decide_by_the_interval(check):
    saved = []
    train(
        check,
        lambda net: EvalCallback(
            net,
            check,
            [Nowhere()],
            triggers=[EveryNSteps(2)],
            keep_best=KeepBest("perplexity/token", saved.append),
            early_stop=EarlyStop("perplexity/token", patience=1),
        ),
    )
    assert saved[0] == 2 and len(saved) > 1
    with pytest.raises(InputError, match="perplexity/tokn"):
        EarlyStop("perplexity/tokn")
