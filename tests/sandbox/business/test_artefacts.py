"""Trained artefacts: equal to scikit-learn, quick, measured, and nothing that isn't trusted is loaded."""

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import skops.io
from scipy.special import softmax

from evalkit.canonical import sha256_file
from evalkit.errors import InputError
from sandbox.business.features import RatedTurn, intent_features, satisfaction_features
from sandbox.business.flow import BusinessFlow
from sandbox.business.intent import IntentRecogniser
from sandbox.business.linear_model import TRUSTED_TYPES, LinearTextModel
from sandbox.business.satisfaction import SatisfactionPredictor
from tests.sandbox.fixtures import INTENTS

TEXTS = [
    "I lost my card 1234",
    "balance, please!",
    "",
    "全都不认识的字",
    "let me talk to a HUMAN agent",
    "zzz",
]


def test_predictions_equal_the_stored_pipelines(flow_folder: Path) -> None:
    turns = [RatedTurn(text, reply, 3, 1) for text in TEXTS for reply in ("", "Your balance is 50 euro.")]
    for name, items in (("intent", TEXTS), ("satisfaction", turns)):
        pipeline = skops.io.load(flow_folder / f"{name}.skops", trusted=list(TRUSTED_TYPES))
        ours = LinearTextModel.from_pipeline(pipeline)
        found = np.stack([ours.probabilities(item) for item in items])
        scores = pipeline.decision_function(items)
        if name == "intent":  # decided label by label: 0 is the score of "none of these"
            expected = softmax(np.hstack([scores, np.zeros((len(items), 1))]), axis=1)[:, :-1]
        else:
            expected = softmax(scores, axis=1)
        assert np.allclose(found, expected, atol=1e-9)


def test_two_labels_work_too() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    texts = [*INTENTS["balance"], *INTENTS["card_lost"]]
    labels = ["balance"] * len(INTENTS["balance"]) + ["card_lost"] * len(INTENTS["card_lost"])
    pipeline = make_pipeline(TfidfVectorizer(analyzer=intent_features), LogisticRegression()).fit(
        texts, labels
    )
    ours = LinearTextModel.from_pipeline(pipeline)
    assert ours.labels == ("balance", "card_lost")
    assert np.allclose(ours.probabilities("my balance"), pipeline.predict_proba(["my balance"])[0], atol=1e-9)


def test_two_labels_decided_one_by_one() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import LinearSVC

    texts = [*INTENTS["balance"], *INTENTS["card_lost"]]
    labels = ["balance"] * len(INTENTS["balance"]) + ["card_lost"] * len(INTENTS["card_lost"])
    pipeline = make_pipeline(TfidfVectorizer(analyzer=intent_features), LinearSVC()).fit(texts, labels)
    ours = LinearTextModel.from_pipeline(pipeline)
    score = pipeline.decision_function(["my balance"])[0]
    expected = softmax([-score, score, 0.0])[:2]
    assert np.allclose(ours.probabilities("my balance"), expected, atol=1e-9)


def test_intents_are_recognised_and_the_rest_is_out_of_scope(flow_folder: Path) -> None:
    recogniser = IntentRecogniser.load(flow_folder / "intent.skops", 0.6)
    assert recogniser.recognise("I have lost the card").label == "card_lost"
    assert recogniser.recognise("zebra quark").out_of_scope
    assert 0.9 < sum(recogniser.recognise("balance").probabilities.values()) < 1
    assert sum(recogniser.recognise("zebra quark").probabilities.values()) < 0.9


def test_a_satisfaction_is_an_expected_rating(flow_folder: Path) -> None:
    predictor = SatisfactionPredictor.load(flow_folder / "satisfaction.skops")
    good = predictor.predict(RatedTurn("what is my balance", "Your balance is 50 euro.", 0, 0))
    bad = predictor.predict(RatedTurn("what is my balance", "I can not help with that.", 0, 1))
    assert 1 <= bad.score < good.score <= 5
    assert bad.probability_dissatisfied > 0.5 > good.probability_dissatisfied


def test_one_turn_costs_far_less_than_two_milliseconds(flow_folder: Path) -> None:
    flow = BusinessFlow.load(flow_folder)
    spent = []
    for text in TEXTS * 20:
        started = time.thread_time()  # whoever else works on this machine doesn't count
        reading = flow.read(text, "en", 0, None, False)
        flow.rate(RatedTurn(text, "Your balance is 50 euro.", 1, reading.failed_turns))
        spent.append(time.thread_time() - started)
    assert np.median(spent) < 1e-3


def test_cards_say_what_was_measured_and_on_what(flow_folder: Path) -> None:
    cards = {
        kind: json.loads((flow_folder / f"{kind}.card.json").read_text())
        for kind in ("intent", "satisfaction")
    }
    for kind, card in cards.items():
        assert card["artefact_sha256"] == sha256_file(flow_folder / f"{kind}.skops")
        assert card["data_sha256"] == sha256_file(flow_folder.parent / card["data_file"])
        assert {"accuracy", "macro_f1"} <= card["measured"].keys()
        assert sum(card["labels"].values()) == card["examples"]
    assert (cards["intent"]["data"], cards["satisfaction"]["data"]) == ("generated", "rated")
    ratings = cards["satisfaction"]
    assert {"quadratic_kappa", "root_mean_squared_error", "dissatisfied_recall"} <= ratings["measured"].keys()
    assert 0 <= ratings["mean_absolute_error"] == ratings["measured"]["mean_absolute_error"] < 4


def swapped(flow_folder: Path, folder: Path, content: bytes) -> Path:
    shutil.copytree(flow_folder, folder)
    (folder / "intent.skops").write_bytes(content)
    (folder / "intent.card.json").unlink()  # which would tell that the artefact isn't the one it describes
    return folder


@pytest.mark.parametrize("part", ["intent", "satisfaction"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "artefact_sha256 is missing"),
        ('{"artefact_sha256": null}', "artefact_sha256 is missing"),
        ('{"artefact_sha256": "00"}', "describes another artefact"),
        ("[]", "a JSON object is needed"),
    ],
)
def test_a_card_that_isnt_of_its_artefact_isnt_served(
    flow_folder: Path, tmp_path: Path, part: str, content: str, message: str
) -> None:
    folder = tmp_path / "flow"
    shutil.copytree(flow_folder, folder)
    (folder / f"{part}.card.json").write_text(content)
    with pytest.raises(InputError, match=message) as error:
        BusinessFlow.load(folder)
    assert part in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "missing or empty"),
        (b"not a zip", "not a skops file"),
        (b"PK\x05\x06" + b"\0" * 18, "can't be read"),
    ],
)
def test_damaged_artefacts_are_one_line(
    flow_folder: Path, tmp_path: Path, content: bytes, message: str
) -> None:
    with pytest.raises(InputError, match=message) as error:
        BusinessFlow.load(swapped(flow_folder, tmp_path / "flow", content))
    assert "intent.skops" in str(error.value)


def test_types_beyond_the_allow_list_are_refused(flow_folder: Path, tmp_path: Path) -> None:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    evil = skops.io.dumps(make_pipeline(FunctionTransformer(shutil.rmtree)))
    with pytest.raises(InputError, match="aren't trusted"):
        BusinessFlow.load(swapped(flow_folder, tmp_path / "flow", evil))


def test_another_kind_of_artefact_is_refused(flow_folder: Path, tmp_path: Path) -> None:
    other = (flow_folder / "satisfaction.skops").read_bytes()
    with pytest.raises(InputError, match="not an artefact of this kind"):
        BusinessFlow.load(swapped(flow_folder, tmp_path / "flow", other))


def test_features_forgive_numbers_width_and_case() -> None:
    assert intent_features("Account １２３４") == intent_features("account 9")
    assert "w:卡 丢" in intent_features("我的卡丢了")
    features = satisfaction_features(RatedTurn("hi", "", 2, 1))
    assert {"turn>=1", "turn>=2", "failed>=1", "reply empty"} <= set(features)
    assert "turn>=3" not in features
