"""The window of training texts, equal weights on all ranks, and drift-aware records of a real training."""

import json
import re
import threading
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.train import Model

from evalkit.errors import InputError
from evalkit.resampling.features import Feature, entity_density, from_function, token_length
from evalkit.resampling.reweighting import ReweightingSettings
from evalkit.training.callback import EvalCallback
from evalkit.training.distributed import Ranks
from evalkit.training.drift import Drift, packed_texts, padded_texts
from evalkit.training.record import JsonlSink
from evalkit.training.triggers import EveryNSteps
from tests.evalkit.training.driver import Nowhere
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


def by_ranks(make, batches, folder, window=200):
    """The weights in each rank; rank r sees every batch's r-th part. `make` gives a Drift."""
    size = len(batches[0])
    found = {}

    def work(rank: int) -> None:
        drift = make(window)
        for parts in batches:
            drift.see(SimpleNamespace(batch=parts[rank]))
        ranks = Ranks(rank, size, folder, "run", timeout_s=20.0)
        try:
            found[rank] = drift.setup(ranks, "1.1")
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(size)]


@pytest.mark.parametrize("method", ["raking", "classifier"])
@pytest.mark.parametrize("window", [37, 200])
def test_all_ranks_have_the_weights_of_one_process_that_saw_every_batch(check, tmp_path, window, method):
    """Batches of unequal size, a window that cuts through one: bit for bit the same, whatever each rank saw."""
    items, stream = texts(60), [item.text for item in texts(120, seed=5) if len(item.text) < 120]
    cuts = np.cumsum([5, 2, 0, 7, 1, 1, 3, 4, 9, 2, 6, 8])
    parts = [list(part) for part in np.split(np.array(stream, dtype=object), cuts)][:12]
    batches = [parts[start : start + 3] for start in range(0, 12, 3)]
    settings = ReweightingSettings(min_effective=2, method=method, bins=4)

    def make(size):
        return filled(items, check.tokenizer, [WORDS, entity_density()], window=size, settings=settings)

    found = by_ranks(make, batches, tmp_path, window)
    alone = make(window)
    for batch in batches:
        alone.see(SimpleNamespace(batch=[text for part in batch for text in part]))
    expected = alone.setup()
    assert len(set(expected.weights.values())) > 1
    assert found == [expected] * 3
    own = make(window)
    for batch in batches:
        own.see(SimpleNamespace(batch=batch[0]))
    assert own.setup().weights != expected.weights  # rank 0's batches alone would weigh otherwise


def test_what_fails_on_one_rank_is_told_on_all(check, tmp_path):
    def make(window):
        return filled(texts(60), check.tokenizer, [WORDS], window=window)

    found = by_ranks(make, [(["a text"] * 30, 5)], tmp_path)
    assert found[0] == found[1] and "drift: rank 1: the batch's texts: " in found[0].problem


def test_what_a_users_function_does_wrong_ends_no_training(check):
    drift = filled(texts(60), check.tokenizer, [WORDS])
    drift.see(SimpleNamespace(batch=["a text"]))
    drift.see(SimpleNamespace())
    found = drift.setup()
    assert "the batch's texts: AttributeError" in found.problem
    drift.see(SimpleNamespace(batch=["a text"] * 100))
    assert "AttributeError" in drift.setup().problem


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"features": []}, "at least one feature"),
        ({"features": [len]}, r"features: .*from_function"),
        ({"features": WORDS}, "features: a list"),
        ({"features": [WORDS, WORDS]}, "a name is there twice"),
        ({"window": 0}, "window: a whole number from 1 on"),
        ({"window": 10.0}, "window: a whole number"),
        ({"seed": -1}, "seed: a whole number"),
        ({"settings": {"bins": 4}}, "settings: ReweightingSettings"),
        ({"batch_texts": "texts"}, "batch_texts: a function"),
        (
            {"batch_texts": lambda fields, more: []},
            "batch_texts: a function of the callback's fields is needed .called with 1",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        Drift(**{"batch_texts": of_batch, "features": [WORDS], **settings})


def test_it_says_where_no_training_has_begun():
    with pytest.raises(InputError, match="call begin"):
        Drift(of_batch, [WORDS]).setup()


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        (lambda texts: [1.0], r"words: gave 1 numbers for 30 texts"),
        (lambda texts: [float("nan")] * len(texts), r"words: gave nan for 'a text'"),
        (lambda texts: ["many"] * len(texts), r"words: gave 'many' for 'a text'"),
        (lambda texts: [None] * len(texts), r"words: gave None"),
        (lambda texts: 7, r"words: failed with TypeError"),
        (lambda texts: {}["x"], r"words: failed with KeyError"),
    ],
)
def test_a_feature_that_gives_nonsense_is_named_and_costs_the_weights_alone(check, measure, message):
    sound = [True]
    feature = Feature("words", lambda texts: [1.0] * len(texts) if sound[0] else measure(texts), "words")
    drift = filled(texts(60), check.tokenizer, [feature])
    drift.see(SimpleNamespace(batch=["a text"] * 30))
    sound[0] = False
    found = drift.setup()
    assert re.search("^drift: the features of the training texts: " + message, found.problem)
    assert "\n" not in found.problem and set(found.weights) == {item.sample_id for item in texts(60)}
    with pytest.raises(InputError, match=r"^drift: the validation texts: words: "):
        filled(texts(30), check.tokenizer, [feature])


@pytest.mark.parametrize("batch", ["a text", 7, None, [1, 2], [np.zeros((2, 2), dtype=int)], [[0.5]]])
def test_what_isnt_a_batch_of_texts_is_told(check, batch):
    drift = filled(texts(60), check.tokenizer, [WORDS])
    drift.see(SimpleNamespace(batch=batch))
    assert "drift: the batch's texts: " in drift.setup().problem


def test_kept_token_ids_are_copies(check):
    """Report M09: a callback that keeps what it is shown keeps the device's memory, or sees it change."""
    drift = filled(texts(60), check.tokenizer, [WORDS])
    ids = np.array(check.tokenizer.encode("Thank you, the payment has arrived.").ids)
    drift.see(SimpleNamespace(batch=[ids, ms.Tensor(ids)]))
    ids[:] = 0
    assert [drift._text(text) for _, text in drift._window] == ["Thank you, the payment has arrived."] * 2


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
        network, check, [Nowhere()], triggers=[EveryNSteps(8)], metrics=["perplexity/token"], drift=drift
    )
    model = Model(loss_cell, optimizer=nn.Adam(loss_cell.trainable_params(), 1e-2))
    model.train(1, dataset(token_rows(check)), callbacks=[callback], dataset_sink_mode=False)
    (record,) = callback.records
    plain, weighted = record.metrics
    assert plain["value"] is not None and weighted["value"] is None
    assert "100.0% of the target lies where no validation text is" in weighted["reason"]
    assert record.uncovered_mass == 1 and record.error is None
