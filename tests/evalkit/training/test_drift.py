"""The window of training texts, equal weights on all ranks, and drift-aware records of a real training."""

import json
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.train import Model

from evalkit.errors import InputError
from evalkit.resampling.features import entity_density, from_function, token_length
from evalkit.resampling.reweighting import ReweightingSettings
from evalkit.training.callback import EvalCallback
from evalkit.training.drift import Drift, packed_texts, padded_texts
from evalkit.training.record import JsonlSink
from evalkit.training.triggers import EveryNSteps
from tests.evalkit.training.fixtures import small_validation, texts, token_rows
from tests.evalkit.training.tutorial import LossCell, TutorialLM, dataset

LOOSE = ReweightingSettings(min_effective=2)
WORDS = from_function("words", lambda text: len(text.split()))


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    return small_validation(tmp_path_factory.mktemp("validation"))


def of_batch(arguments):
    return arguments.batch


def filled(items, tokenizer, features, **settings):
    drift = Drift(of_batch, features, **{"settings": LOOSE, **settings})
    drift.begin(items, tokenizer)
    return drift


def test_the_window_holds_the_latest_texts(check):
    items = texts(60)
    drift = filled(items, check.tokenizer, [WORDS], window=50)
    short = [item.text for item in items if len(item.text.split()) < 15]
    for _ in range(30):
        drift.see(SimpleNamespace(batch=["many " * 200] * 4))
    assert "of the target lies where no validation text is" in drift.setup().problem
    for start in range(50):
        drift.see(SimpleNamespace(batch=short[start % len(short) :][:4]))
    found = drift.setup()
    assert found.problem is None and found.details["target_texts"] == 50
    longest = max(items, key=lambda item: len(item.text.split()))
    assert found.weights[longest.sample_id] == 0
    assert found.details["marginal_after"]["words"] < 0.01 < found.details["marginal_before"]["words"]


def test_token_ids_are_the_texts_they_stand_for(check):
    items = texts(60)
    features = [token_length(check.tokenizer, "t"), entity_density()]
    by_text, by_ids = (filled(items, check.tokenizer, features) for _ in range(2))
    for item in texts(80, seed=3):
        by_text.see(SimpleNamespace(batch=[item.text]))
        by_ids.see(SimpleNamespace(batch=[check.tokenizer.encode(item.text).ids]))
    assert by_text.setup() == by_ids.setup()


def test_ranks_that_share_their_windows_have_equal_weights(check):
    """Two ranks see different batches; joined in their order they have the weights of one that saw all."""
    items, stream = texts(60), [item.text for item in texts(120, seed=5)]
    windows = [stream[:70], stream[70:]]
    matrices = [np.array([[float(len(text.split()))] for text in window]) for window in windows]
    found = []
    for window in windows:
        drift = filled(items, check.tokenizer, [WORDS], gather=lambda own: np.concatenate(matrices))
        drift.see(SimpleNamespace(batch=window))
        found.append(drift.setup())
    alone = filled(items, check.tokenizer, [WORDS])
    alone.see(SimpleNamespace(batch=stream))
    assert found[0] == found[1] == alone.setup()


def test_what_a_users_function_does_wrong_ends_no_training(check):
    drift = filled(texts(60), check.tokenizer, [WORDS])
    drift.see(SimpleNamespace(batch=["a text"]))
    drift.see(SimpleNamespace())
    found = drift.setup()
    assert "the batch's texts: AttributeError" in found.problem
    drift.see(SimpleNamespace(batch=["a text"] * 100))
    assert "AttributeError" in drift.setup().problem


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(InputError, match="at least one feature"):
        Drift(of_batch, [])
    with pytest.raises(InputError, match="window: at least 1"):
        Drift(of_batch, [WORDS], window=0)
    with pytest.raises(InputError, match="call begin"):
        Drift(of_batch, [WORDS]).setup()


def test_an_empty_window_is_inconclusive(check):
    found = filled(texts(60), check.tokenizer, [WORDS]).setup()
    assert found.problem == "the target holds no text"


def test_texts_of_packed_and_padded_rows():
    ids = np.array([[5, 6, 7, 8, 0, 0], [9, 9, 4, 0, 0, 0]])
    segments = np.array([[1, 1, 2, 2, 0, 0], [1, 1, 1, 0, 0, 0]])
    assert [text.tolist() for text in packed_texts(ids, segments)] == [[5, 6], [7, 8], [9, 9, 4]]
    assert [text.tolist() for text in padded_texts(ids, 0)] == [[5, 6, 7, 8], [9, 9, 4]]
    assert padded_texts(np.zeros((2, 3), dtype=np.int32), 0) == []
    copied = padded_texts(ids, 0)
    ids[:] = 1
    assert copied[0].tolist() == [5, 6, 7, 8]


def test_a_training_records_both_numbers(check, tmp_path):
    ms.set_seed(7)
    network = TutorialLM(check.tokenizer.vocab_size, nn.Dropout(p=0.3))
    loss_cell = LossCell(network)
    sink = JsonlSink(tmp_path / "evaluations.jsonl")
    rows = token_rows(check)
    stream = [item.text for item in check.items]
    drift = Drift(
        lambda arguments: stream * len(arguments.train_dataset_element[0].asnumpy()),
        [WORDS, entity_density()],
        settings=LOOSE,
    )
    callback = EvalCallback(
        network, check, [sink], triggers=[EveryNSteps(4)], metrics=["perplexity/token"], drift=drift
    )
    model = Model(loss_cell, optimizer=nn.Adam(loss_cell.trainable_params(), 1e-2))
    model.train(1, dataset(rows), callbacks=[callback], dataset_sink_mode=False)
    lines = [json.loads(line) for line in sink.path.read_text().splitlines()]
    assert [line["error"] for line in lines] == [None, None]
    for line in lines:
        plain, weighted = line["metrics"]
        assert (plain["slice"], weighted["slice"]) == (None, "resampled")
        # The window holds the validation texts themselves: nothing drifted.
        assert weighted["value"] == pytest.approx(plain["value"], rel=1e-9)
        assert line["effective_sample_size"] == pytest.approx(len(check.items))
        assert line["uncovered_mass"] == 0
        assert line["drift"]["problem"] is None and line["drift"]["joint_after"] == pytest.approx(0)


def test_a_record_says_why_there_is_no_number(check, tmp_path):
    network = TutorialLM(check.tokenizer.vocab_size, nn.Dropout(p=0.0))
    loss_cell = LossCell(network)
    drift = Drift(lambda arguments: ["far " * 300] * 40, [WORDS])
    callback = EvalCallback(
        network, check, [], triggers=[EveryNSteps(8)], metrics=["perplexity/token"], drift=drift
    )
    model = Model(loss_cell, optimizer=nn.Adam(loss_cell.trainable_params(), 1e-2))
    model.train(1, dataset(token_rows(check)), callbacks=[callback], dataset_sink_mode=False)
    (record,) = callback.records
    plain, weighted = record.metrics
    assert plain["value"] is not None and weighted["value"] is None
    assert "100.0% of the target lies where no validation text is" in weighted["reason"]
    assert record.uncovered_mass == 1 and record.error is None
