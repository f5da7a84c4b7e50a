"""Calibration of the next-token probability against the full distributions in plain float64."""

from dataclasses import replace

import numpy as np
import pytest

from evalkit.errors import InputError
from evalkit.gate.families import evidence_kinds
from evalkit.metrics.evaluate import evaluate
from evalkit.metrics.registry import metric_names
from evalkit.metrics.top1 import confidences, from_text, outcomes, to_text, top1_outcomes
from evalkit.runs.evidence import Evidence
from evalkit.scenario.schema import Window
from evalkit.scoring.scorer import score_texts
from evalkit.scoring.texts import TextItem
from tests.evalkit.metrics.samples import context, text_record
from tests.evalkit.scoring.conftest import classifier, tokenizer
from tests.evalkit.scoring.table_backend import ContextBackend

__all__ = ["classifier", "tokenizer"]

WORDS = ["annual", "fee", "card", "euro", "Maria", "信用卡", "250", "block", "now", "zebra"]


@pytest.fixture(scope="module")
def scored(tokenizer, classifier):
    """Records; confidence, outcome and class of every token from the distributions; confidence as it was stored."""
    generator = np.random.default_rng(5)
    texts = [" ".join(generator.choice(WORDS, generator.integers(3, 12))) for _ in range(60)]
    items = [
        TextItem(f"t{index:02}", text, f"c{index % 40:02}", ("odd",) if index % 2 else ())
        for index, text in enumerate(texts)
    ]
    backend = ContextBackend(tokenizer.vocab_size, 64)
    backend.head *= 3  # sure of itself, and wrong
    records = []
    score_texts(
        items, tokenizer, backend, Window(length=64, stride=64), classifier, on_records=records.extend
    )
    said, came, codes, stored = [], [], [], []
    by_id = {record.sample_id: record for record in records}
    for item in items:
        encoded = tokenizer.encode(item.text)
        logprobs = backend.logprobs([1, *encoded.ids[:-1]])
        said.append(np.exp(logprobs.max(1)))
        came.append((logprobs.argmax(1) == encoded.ids).astype(float))
        codes.append(np.array(classifier.names)[classifier.classify(item.text, encoded)])
        stored.append(np.empty(len(encoded.ids)))
        for name, text in by_id[item.sample_id].top1_outcomes.items():
            stored[-1][codes[-1] == name] = confidences(from_text(text))
    return records, *(np.concatenate(parts) for parts in (said, came, codes, stored))


def of(records, **changes):
    found = evaluate(Evidence(tuple(records)), context(slices=("odd",), **changes))
    return {(item.name, item.slice): item for item in found if item.name.startswith("calibration/top1")}


def ten_bins(key):
    """Ten bins of equally many; equal ones go with the first of them. Float32 decides what is equal, hence the key."""
    return np.array([(key < one).sum() for one in key]) * 10 // len(key)


def reference(said, came, key):
    """Expected calibration error and Brier score: cut into ten by the key, compare means."""
    gaps = [abs((said - came)[ten_bins(key) == number].sum()) for number in range(10)]
    return sum(gaps) / len(said), ((said - came) ** 2).mean()


def test_values_are_those_of_the_full_distributions(scored):
    records, said, came, codes, stored = scored
    assert len(said) > 400 and 0 < came.mean() < 1
    # Float32 of a log-probability of -60 nats is good to 4e-6.
    assert np.abs(stored - said).max() < 5e-6
    found = of(records)
    error, brier = reference(said, came, stored)
    whole = found["calibration/top1_ece", None]
    assert whole.value == pytest.approx(error, abs=5e-6)
    assert found["calibration/top1_brier", None].value == pytest.approx(brier, abs=5e-6)
    assert whole.n == len(said) and whole.clusters == 40
    assert whole.details["mean_confidence"] == pytest.approx(said.mean(), abs=1e-6)
    assert whole.details["accuracy"] == pytest.approx(came.mean())
    assert len(set(codes)) >= 4
    for name in sorted(set(codes)):
        member = codes == name
        error, brier = reference(said[member], came[member], stored[member])
        assert found[f"calibration/top1_ece/{name}", None].value == pytest.approx(error, abs=5e-6), name
        assert found[f"calibration/top1_brier/{name}", None].value == pytest.approx(brier, abs=5e-6), name
        assert found[f"calibration/top1_ece/{name}", None].n == member.sum()


def test_the_curve_has_bins_of_equally_many_tokens_with_intervals(scored):
    records, said, came, _, stored = scored
    curve = of(records)["calibration/top1_ece", None].details["bins"]
    parts = ten_bins(stored)
    assert len(curve) == 10 and abs(np.bincount(parts) - len(said) / 10).max() <= 3
    for number, item in enumerate(curve):
        assert item["n"] == (parts == number).sum()
        assert item["confidence"] == pytest.approx(said[parts == number].mean(), abs=5e-6)
        assert item["accuracy"] == pytest.approx(came[parts == number].mean(), abs=1e-9)
        assert item["low"] <= item["accuracy"] <= item["high"]


def test_clusters_are_respected(scored):
    """Each text ten times in its cluster: the same values and the same intervals."""
    records = scored[0]
    copies = [replace(one, sample_id=f"{one.sample_id}-{copy}") for one in records for copy in range(10)]
    once, often = of(records), of(copies)
    for name in ("calibration/top1_ece", "calibration/top1_brier"):
        few, many = once[name, None], often[name, None]
        assert many.n == 10 * few.n and many.value == pytest.approx(few.value, rel=1e-12)
        assert many.interval.low == pytest.approx(few.interval.low, abs=1e-3)
        assert few.interval.low < few.value <= few.interval.high


def test_order_and_slices(scored):
    records = scored[0]
    assert of(records) == of(sorted(records, key=lambda one: one.sample_id))
    brier = "calibration/top1_brier"
    assert of(records)[brier, None].value == of(records[::-1])[brier, None].value
    odd = of(records)["calibration/top1_ece", "odd"]
    assert odd.n == sum(one.scored for one in records if "odd" in one.tags)


def test_a_calibrated_model_reaches_zero():
    generator = np.random.default_rng(1)
    low_ends = []
    for seed in range(20):
        said = generator.uniform(0.2, 1.0, (200, 6))
        came = generator.random((200, 6)) < said
        records = [
            text_record(
                f"t{index:03}",
                top1_outcomes={"head": to_text((np.rint(p * 2**30).astype(np.uint32) << 1) | c)},
                classes={"head": replace(text_record("x").classes["head"], tokens=6)},
            )
            for index, (p, c) in enumerate(zip(said, came.astype(np.uint32), strict=True))
        ]
        low_ends.append(of(records, seed=seed)["calibration/top1_ece", None].bounds.low)
    assert max(low_ends) == 0.0


@pytest.mark.parametrize(
    ("logprob", "margin", "rank", "confidence", "outcome"),
    [
        (np.log(0.6), 1.2, 1, 0.6, 1.0),
        (np.log(0.1), np.log(0.1) - np.log(0.7), 3, 0.7, 0.0),
        # A tie for the first place counts as right, as for top_k_accuracy.
        (np.log(0.5), 0.0, 1, 0.5, 1.0),
        (0.0, 90.0, 1, 1.0, 1.0),
        # A hair above 0 by float32 rounding.
        (-20.0, -20.000002, 2, 1.0, 0.0),
    ],
)
def test_confidence_and_outcome_of_one_token(logprob, margin, rank, confidence, outcome):
    packed = top1_outcomes(np.float32([logprob]), np.float32([margin]), np.int32([rank]))
    assert confidences(packed)[0] == pytest.approx(confidence, abs=1e-6)
    assert outcomes(packed)[0] == outcome
    assert (from_text(to_text(packed)) == packed).all()


def test_what_is_not_recorded_has_no_value():
    found = of([text_record("a"), text_record("b")])
    for name in ("calibration/top1_ece", "calibration/top1_brier", "calibration/top1_ece/head"):
        assert found[name, None].value is None and "no rank and margin" in found[name, None].reason
    absent = {"calibration/top1_ece/oov": "no word counts"}
    record = text_record("a", classes={}, top1_outcomes={})
    assert of([record], absent=absent)["calibration/top1_ece/oov", None].reason == "no word counts"


def test_damaged_evidence_is_named():
    with pytest.raises(InputError, match=r"text 'a': top1_outcomes: .*the evidence is damaged"):
        of([text_record("a", top1_outcomes={"head": "no base64!"})])


def test_rules_on_it_stand_on_texts():
    for name in metric_names():
        if name.startswith("calibration/"):
            assert evidence_kinds(name) == (("text",) if "/top1_" in name else ("risk",)), name
