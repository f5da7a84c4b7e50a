"""The drift benchmark on made-up pools: its truth, its halves, and that re-weighting tracks what it should."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import drift
from benchmarks.drift_data import (
    F1,
    QUESTIONS,
    SCRAMBLED,
    UTTERANCES,
    Pool,
    business,
    courtesy,
    f1_state,
    topic_words,
)
from evalkit.resampling.features import entity_density, from_function
from evalkit.resampling.reweighting import ReweightingSettings
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import ClassSums
from evalkit.scoring.texts import TextItem
from tests.evalkit.metrics.samples import text_record


def pool(seed: int = 0) -> Pool:
    """Questions without numbers, orders with them; orders are harder, whoever says them."""
    generator = np.random.default_rng(seed)
    items, records = [], []
    for source, count, share in ((QUESTIONS, 3000, 0.1), (SCRAMBLED, 3000, 0.1), (UTTERANCES, 3000, 0.8)):
        for index in range(count):
            order = generator.random() < share
            words = " ".join(["word"] * int(generator.integers(3, 12)))
            text = f"{words} 12 and 345" if order else words
            name = f"{source}-{index:05d}"
            nll = float(generator.gamma(4, 9 if source == SCRAMBLED else (8 if order else 5)))
            nll = round(nll * 2**30) / 2**30
            right = generator.random() < (0.7 if order else 0.95)
            classes = {
                part: ClassSums(4, nll=nll / 4, entropy=1.0, margin=1.0, rank=9.0, top1=0, top5=0, bytes=10)
                for part in ("head", "middle", "long_tail", "oov")
            }
            items.append(TextItem(name, text, name))
            records.append(
                text_record(
                    name,
                    tokens=16,
                    scored=16,
                    nll=nll,
                    classes=classes,
                    tags=["is:question", "said:question" if right else "said:statement"],
                )
            )
    order_of = sorted(range(len(items)), key=lambda index: items[index].sample_id)
    return Pool(
        tuple(items[index] for index in order_of),
        Evidence(samples=tuple(records[index] for index in order_of)),
        tuple(items[index].sample_id.split("-")[0] for index in order_of),
        Path("none"),
    )


@pytest.fixture(scope="module")
def tracking():
    features = (from_function("words", lambda text: len(text.split())), entity_density())
    return drift.Tracking(pool(), features, ReweightingSettings())


def test_a_shift_that_the_features_show_is_tracked_and_one_that_they_do_not_is_not(tracking):
    shown = drift.summary([tracking.run("drift", seed) for seed in range(2)])
    for metric in (F1.name, "perplexity/long_tail"):
        assert shown[metric]["change"]["median"] < -0.42
    unseen = drift.summary([tracking.run("concept shift", seed) for seed in range(2)])
    assert unseen["perplexity/long_tail"]["change"]["median"] > -0.15


def test_the_truth_is_the_mixture_of_the_fresh_half(tracking):
    run = tracking.run("drift", 3)
    own, fresh = tracking._halves(np.random.default_rng([3, 0]))
    assert not set(np.concatenate(list(own.rows.values()))) & set(np.concatenate(list(fresh.rows.values())))
    records = tracking.pool.evidence.samples
    step = run["steps"][4]
    sums = np.zeros(2)
    for source, share in ((QUESTIONS, 0.5), (UTTERANCES, 0.5)):
        rows = fresh.rows[source]
        sums += share * np.mean([f1_state(records[row])[:2] for row in rows], axis=0)
    assert step["share"] == 0.5
    assert step["truth"][F1.name] == pytest.approx(2 * sums[0] / (2 * sums[0] + sums[1]), rel=1e-9)


def test_the_glossary_is_the_words_of_the_topics_names(tmp_path):
    (tmp_path / "banking77").mkdir()
    names = ["card_arrival", "top_up_by_card", "why_verify_identity", "Refund_not_showing_up"]
    (tmp_path / "banking77" / "categories.json").write_text(json.dumps(names))
    assert topic_words(tmp_path) == ["arrival", "card", "identity", "refund", "showing", "top", "verify"]


def test_features_of_the_user():
    assert business("My card!") == pytest.approx(100 / 8)
    assert courtesy("Yes, thanks") == pytest.approx(200 / 11)
    assert courtesy("") == 0
