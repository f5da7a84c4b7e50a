"""Differences to the clean texts: pairs by text, clusters drawn together, compared with plain numpy."""

from dataclasses import replace

import numpy as np
import pytest

from evalkit.metrics.context import RobustnessSetup
from evalkit.metrics.evaluate import evaluate
from evalkit.metrics.registry import spec_for
from evalkit.runs.evidence import Evidence
from evalkit.runs.perturbed import perturbed_record
from evalkit.runs.records import ClassSums
from tests.evalkit.metrics.samples import context, text_record

TYPOS = RobustnessSetup("typos", "respelt", "a" * 64, "typos (rate 0.05)")
DROP = RobustnessSetup("drop", "removed", "b" * 64, "drop_sentences (rate 0.2)")


def made(texts: int = 80, seed: int = 0):
    """Clean and perturbed records of texts in clusters of two, with tags; every fourth isn't changed."""
    random = np.random.default_rng(seed)
    clean, changed = [], []
    for index in range(texts):
        tokens, nll = int(random.integers(5, 30)), float(random.integers(10, 90))
        record = text_record(
            f"t{index:02d}",
            cluster=f"c{index // 2:02d}",
            digest=f"d{index}",
            scored=tokens,
            tokens=tokens,
            nll=nll,
            bytes=4 * tokens,
            bytes_scored=4 * tokens,
            classes={
                "head": ClassSums(tokens, nll, nll / 2, nll, 2.0 * tokens, tokens // 2, tokens, 4 * tokens)
            },
            tags=["hard" if index % 5 == 0 else "easy", *(["rare"] if index < 3 else [])],
        )
        clean.append(record)
        if index % 4 == 0:
            changed.append(record)
            continue
        more, worse = int(random.integers(0, 6)), float(random.integers(1, 30)) * (4 if index % 5 == 0 else 1)
        tokens, nll = tokens + more, nll + worse
        changed.append(
            replace(
                record,
                digest=f"e{index}",
                scored=tokens,
                tokens=tokens,
                nll=nll,
                bytes_scored=12 * tokens,
                bytes=12 * tokens,
                classes={
                    "head": ClassSums(
                        tokens, nll, nll / 2, nll, 3.0 * tokens, tokens // 3, tokens, 12 * tokens
                    )
                },
            )
        )
    return clean, changed


def measured(setup, clean, changed, **settings):
    records = [*clean, *(perturbed_record(record, setup.name) for record in changed)]
    results = evaluate(Evidence(tuple(records)), context(robustness=(setup,), **settings))
    return {(metric.name, metric.slice): metric for metric in results}


def bootstrap(clean, changed, statistic, seed=7, resamples=2000):
    """Expanded percentile interval of a paired statistic, straight from its definition."""
    from scipy.stats import norm, t

    clusters = sorted({record.cluster for record in clean})
    pairs = {name: [] for name in clusters}
    for ours, theirs in zip(clean, changed, strict=True):
        pairs[ours.cluster].append((ours, theirs))
    size = len(clusters)
    draws = np.random.default_rng(seed).integers(0, size, size=(resamples, size))
    values = np.sort([statistic([pair for one in row for pair in pairs[clusters[one]]]) for row in draws])
    tail = norm.cdf(np.sqrt(size / (size - 1)) * t.ppf(0.025, size - 1))
    rank = int(tail * (resamples + 1))
    return values[rank - 1], values[resamples - rank]


def respelt_perplexity(pairs):
    clean, changed, units = np.array([(a.nll, b.nll, a.scored) for a, b in pairs], dtype=np.float64).sum(0)
    return np.exp(changed / units) / np.exp(clean / units) - 1


def own_perplexity(pairs):
    sums = np.array([(a.nll, b.nll, a.scored, b.scored) for a, b in pairs], dtype=np.float64).sum(0)
    return np.exp(sums[1] / sums[3]) / np.exp(sums[0] / sums[2]) - 1


def accuracy(pairs):
    rows = [(a.classes["head"].top1, b.classes["head"].top1, a.scored, b.scored) for a, b in pairs]
    sums = np.array(rows, dtype=np.float64).sum(0)
    return sums[1] / sums[3] - sums[0] / sums[2]


@pytest.mark.parametrize(
    ("setup", "metric", "statistic"),
    [
        (TYPOS, "perplexity/token", respelt_perplexity),
        (DROP, "perplexity/token", own_perplexity),
        (TYPOS, "logits/top_k_accuracy", accuracy),
    ],
)
def test_values_and_intervals_are_those_of_numpy(setup, metric, statistic):
    clean, changed = made()
    result = measured(setup, clean, changed)[f"robustness/{setup.name}/{metric}", None]
    assert result.value == pytest.approx(statistic(list(zip(clean, changed, strict=True))), rel=1e-12)
    low, high = bootstrap(clean, changed, statistic)
    assert result.interval is not None
    assert result.interval.low == pytest.approx(low, rel=1e-9)
    assert result.interval.high == pytest.approx(high, rel=1e-9)
    assert result.clusters == 40 and result.coverage == 1.0
    assert result.details["texts_changed"] == 60 and result.details["texts_compared"] == 80


def test_the_parts_stand_beside_the_difference():
    clean, changed = made()
    found = measured(TYPOS, clean, changed)
    result, plain = found["robustness/typos/perplexity/token", None], found["perplexity/token", None]
    assert result.details["clean"] == plain.value
    assert result.value == pytest.approx(result.details["perturbed"] / plain.value - 1, rel=1e-12)
    assert result.unit == "relative change" and result.direction == "lower" and result.action
    # Three bytes instead of one don't make a better model.
    assert found["robustness/typos/bits_per_byte", None].value > 0
    assert measured(DROP, clean, changed)["robustness/drop/bits_per_byte", None].value < 0


def test_clean_numbers_and_counts_know_nothing_of_it():
    clean, changed = made()
    alone = {(m.name, m.slice): m for m in evaluate(Evidence(tuple(clean)), context())}
    found = measured(TYPOS, clean, changed)
    assert {key: metric for key, metric in found.items() if not key[0].startswith("robustness/")} == alone


def test_the_worst_slice_is_named_among_those_that_are_large_enough():
    clean, changed = made()
    found = measured(TYPOS, clean, changed)
    details = found["robustness/typos/perplexity/token", None].details
    assert details["worst_slice"] == "hard" and details["slices_measured"] == 2
    assert details["slices_too_small"] == 1  # rare: two clusters
    worst = found["robustness/typos/perplexity/token", "hard"]
    assert worst.value == details["worst_slice_value"] and worst.interval is not None
    assert found["robustness/typos/perplexity/token", "rare"].interval is None
    assert ("robustness/typos/rate/oov", "hard") not in found
    assert ("robustness/typos/rate/oov", "hard") in measured(TYPOS, clean, changed, slices=("hard",))


def test_a_perturbation_that_changes_nothing_shows_nothing():
    clean, _ = made()
    result = measured(TYPOS, clean, clean)["robustness/typos/perplexity/token", None]
    assert result.value is None and result.reason == "the perturbation changes none of the 80 texts"


def test_texts_that_fail_lower_the_coverage():
    clean, changed = made()
    changed[3] = replace(changed[3], status="error", reason="x", scored=0, classes={})
    result = measured(TYPOS, clean, changed)["robustness/typos/perplexity/token", None]
    assert result.coverage == 79 / 80 and result.details["texts_compared"] == 79
    clean, changed = made(texts=4)
    gone = measured(TYPOS, clean, [replace(one, status="error", classes={}) for one in changed])
    assert gone["robustness/typos/perplexity/token", None].value is None


def test_classes_that_only_one_side_has():
    clean, changed = made()
    changed = [
        replace(one, classes={"oov": one.classes["head"]}) if index % 2 else one
        for index, one in enumerate(changed)
    ]
    found = measured(TYPOS, clean, changed)
    assert found["robustness/typos/perplexity/oov", None].value is None
    moved = found["robustness/typos/rate/oov", None]
    oov = sum(one.scored for index, one in enumerate(changed) if index % 2)
    assert moved.value == pytest.approx(oov / sum(one.scored for one in changed), rel=1e-12)
    assert moved.clusters == 40


def test_declarations():
    spec = spec_for("robustness/anything/logits/top_k_accuracy")
    assert (spec.unit, spec.direction, spec.support) == ("share", "higher", (-1.0, 1.0))
    for name in ("robustness/typos/latency/first_token", "robustness//perplexity/token", "robustness/typos"):
        with pytest.raises(Exception, match="unknown metric"):
            spec_for(name)
