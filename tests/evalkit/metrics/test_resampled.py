"""Re-weighted metrics against plain numpy, copies of texts, and the truth in a simulation."""

import math
from dataclasses import replace

import numpy as np
import pytest

from evalkit.canonical import sha256_text
from evalkit.errors import InputError
from evalkit.gate.compare import compare
from evalkit.metrics.context import ResampleSetup
from evalkit.metrics.evaluate import build_estimators, evaluate
from evalkit.metrics.own import OwnMetric
from evalkit.metrics.resampled import SLICE, WeightedEstimator, estimators
from evalkit.resampling.reweighting import reweight
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import ClassSums
from evalkit.runs.results_io import build_results
from evalkit.statistics.intervals import Question, delta_error, uncertainty
from tests.evalkit.metrics.samples import context, text_record


def text(name, tokens, nll, *, cluster=None, **changes):
    """A text of one class."""
    fixed = round(nll * 2**30) / 2**30
    sums = ClassSums(
        tokens, nll=fixed, entropy=1.0, margin=1.0, rank=float(tokens), top1=1, top5=1, bytes=tokens
    )
    return text_record(
        name,
        cluster=cluster or name,
        tokens=tokens,
        scored=tokens,
        bytes=tokens,
        bytes_scored=tokens,
        words=max(1, tokens // 2),
        nll=fixed,
        classes={"head": sums},
        **changes,
    )


def evidence(size=120, seed=0, clusters=40):
    generator = np.random.default_rng(seed)
    texts = [
        text(
            f"t{index:03d}",
            int(generator.integers(3, 30)),
            float(generator.gamma(4, 3)),
            cluster=f"c{index % clusters:02d}",
        )
        for index in range(size)
    ]
    return Evidence(samples=tuple(texts))


def setup(weights, **changes):
    return ResampleSetup(weights=weights, digest="d" * 64, **changes)


def weights_of(found, seed=1):
    generator = np.random.default_rng(seed)
    return {sample.sample_id: float(generator.exponential(1)) for sample in found.samples}


def resampled(found, weights, **changes):
    results = evaluate(found, context(resample=setup(weights, **changes)))
    return {item.name: item for item in results if item.slice == SLICE}


def test_values_are_ratios_of_weighted_sums():
    found = evidence()
    weights = weights_of(found)
    metrics = resampled(found, weights)
    w = np.array([weights[sample.sample_id] for sample in found.samples])
    nll = np.array([sample.nll for sample in found.samples])
    tokens = np.array([sample.scored for sample in found.samples], dtype=float)
    assert metrics["perplexity/token"].value == pytest.approx(math.exp((w @ nll) / (w @ tokens)), rel=1e-12)
    assert metrics["perplexity/head"].value == metrics["perplexity/token"].value
    assert metrics["bits_per_byte"].value == pytest.approx((w @ nll) / (w @ tokens) / math.log(2), rel=1e-12)
    assert metrics["logits/top_k_accuracy"].value == pytest.approx(w.sum() / (w @ tokens), rel=1e-12)
    assert metrics["perplexity/token"].n == tokens.sum()
    assert metrics["perplexity/token"].signature == "ppl|x|resample:dddddddd"


def test_the_standard_error_is_that_of_the_weighted_estimator():
    """Cochran's linearisation written out in numpy, clusters as units; the bootstrap agrees."""
    found = evidence(size=400, clusters=100)
    weights = weights_of(found)
    metrics = resampled(found, weights)["perplexity/token"]
    clusters = sorted({sample.cluster for sample in found.samples})
    y, x = np.zeros(len(clusters)), np.zeros(len(clusters))
    for sample in found.samples:
        place = clusters.index(sample.cluster)
        y[place] += weights[sample.sample_id] * sample.nll
        x[place] += weights[sample.sample_id] * sample.scored
    ratio = y.sum() / x.sum()
    residuals = y - ratio * x
    error = math.exp(ratio) * math.sqrt(100 / 99 * (residuals**2).sum()) / x.sum()
    assert metrics.details["standard_error"] == pytest.approx(error, rel=1e-9)
    half = (metrics.interval.high - metrics.interval.low) / 2
    assert half == pytest.approx(1.98 * error, rel=0.12)
    assert metrics.interval.method == "cluster-bootstrap"


def test_whole_weights_are_copies_of_texts():
    found = evidence()
    counts = {sample.sample_id: index % 3 for index, sample in enumerate(found.samples)}
    copies = Evidence(
        samples=tuple(
            replace(sample, sample_id=f"{sample.sample_id}-{copy}")
            for sample in found.samples
            for copy in range(counts[sample.sample_id])
        )
    )
    ours = resampled(found, {name: float(count) for name, count in counts.items()})
    for metric in evaluate(copies, context()):
        if metric.name in ("perplexity/token", "perplexity/head", "bits_per_byte", "logits/entropy"):
            assert ours[metric.name].value == metric.value
            assert ours[metric.name].details["standard_error"] == pytest.approx(
                metric.details["standard_error"], rel=0.02
            )


def test_equal_weights_change_nothing_but_the_slice():
    found = evidence()
    results = evaluate(found, context(resample=setup(dict.fromkeys(weights_of(found), 1.0))))
    plain = {item.name: item for item in results if item.slice is None}
    for item in results:
        if item.slice == SLICE and item.value is not None:
            assert item.value == pytest.approx(plain[item.name].value, rel=1e-12)
            assert item.n == plain[item.name].n and item.clusters == plain[item.name].clusters
            assert item.coverage == 1.0
    assert {name for name, item in plain.items() if item.value is not None} - {
        item.name for item in results if item.slice == SLICE
    } == set()


def test_a_problem_makes_every_metric_null():
    found = evidence()
    metrics = resampled(found, weights_of(found), problem="too far", details={"uncovered_mass": 0.4})
    assert metrics["perplexity/token"].details["uncovered_mass"] == 0.4
    assert all(item.value is None and item.reason for item in metrics.values())
    assert metrics["perplexity/token"].reason == "too far"
    assert metrics["perplexity/token"].interval is None and metrics["perplexity/token"].bounds is None


def test_a_metric_that_few_weighted_texts_hold_is_null():
    found = evidence()
    weights = dict.fromkeys(weights_of(found), 1e-6) | {"t001": 1.0, "t002": 1.0}
    metric = resampled(found, weights)["perplexity/token"]
    assert metric.value is None
    assert "effective sample size of 2.0" in metric.reason
    zero = resampled(found, dict.fromkeys(weights, 0.0))["perplexity/token"]
    assert zero.value is None and "effective sample size of 0.0" in zero.reason


def test_failed_texts_lower_the_coverage():
    found = evidence()
    broken = replace(found.samples[0], status="error", reason="x", scored=0, classes={}, nll=0.0)
    metric = resampled(Evidence(samples=(broken, *found.samples[1:])), weights_of(found))["perplexity/token"]
    assert metric.coverage == pytest.approx(119 / 120)


def test_a_scored_text_without_a_weight_is_damage():
    found = evidence()
    weights = weights_of(found)
    del weights["t005"]
    with pytest.raises(InputError, match="no weight for the text 't005'"):
        build_estimators(found, context(resample=setup(weights)))


def test_the_calibration_error_has_no_weighted_value():
    found = evidence()
    metric = resampled(found, weights_of(found)).get("calibration/top1_ece")
    assert metric is None or metric.value is None


def test_any_statistic_of_the_user_is_reweighted():
    """F1 isn't a ratio of one pair of sums."""
    metric = OwnMetric(
        "own/f1",
        "share",
        "higher",
        "text",
        lambda record: (record.scored % 3 == 0, record.scored % 3 == 1, 1.0),
        lambda sums: 2 * sums[:, 0] / (2 * sums[:, 0] + sums[:, 1]),
        "act",
        0.5,
        support=(0.0, 1.0),
    )
    found = evidence()
    weights = weights_of(found)
    setting = setup(weights)
    (named,) = [
        item
        for item in estimators(found, context(signatures={"own/f1": "s"}), setting, [metric])
        if item.name == "own/f1"
    ]
    assert isinstance(named.estimator, WeightedEstimator)
    hits = sum(weights[s.sample_id] for s in found.samples if s.scored % 3 == 0)
    misses = sum(weights[s.sample_id] for s in found.samples if s.scored % 3 == 1)
    assert named.estimator.value == pytest.approx(2 * hits / (2 * hits + misses), rel=1e-12)
    answer = uncertainty(Question(named.estimator, "cluster-bootstrap", (0.0, 1.0)), confidence=0.95, seed=1)
    assert answer.interval.low < named.estimator.value < answer.interval.high


def test_two_models_are_compared_under_the_same_weights():
    ours, theirs = evidence(seed=1), evidence(seed=1)
    ours = Evidence(
        samples=tuple(
            replace(text(s.sample_id, s.scored, s.nll * 1.05, cluster=s.cluster), digest=s.digest)
            for s in ours.samples
        )
    )
    setting = context(resample=setup(weights_of(theirs)))
    results = [
        build_results(
            side, evaluate(side, setting), run_id="r", plan_sha256="p", model_digest=sha256_text(name)
        )
        for name, side in (("a", ours), ("b", theirs))
    ]
    change = compare(ours, theirs, setting, *results).find("bits_per_byte", None, SLICE)
    assert change.relative.value == pytest.approx(0.05, rel=1e-6)
    assert change.coverage == 1.0 and change.clusters == 40
    assert change.relative.interval is not None


@pytest.mark.slow
@pytest.mark.parametrize("method", ["weights", "draw"])
def test_intervals_hold_the_truth_as_often_as_they_say(method):
    """Covariate shift with a known answer: the mean of y on the target, 95 % intervals, 400 data sets.

    y depends on the feature and, beyond it, on chance alone; the target's texts are a sample too.
    """
    generator = np.random.default_rng(11)
    held, runs, errors = 0, 400, []
    effects = np.array([3.0, 4.0, 5.0, 5.5, 7.0, 9.0])
    from_shares, to_shares = [0.3, 0.25, 0.2, 0.1, 0.1, 0.05], [0.05, 0.1, 0.15, 0.2, 0.25, 0.25]
    truth = float(effects @ to_shares)
    for run in range(runs):
        x = generator.choice(6, 400, p=from_shares)
        y = effects[x] + generator.normal(0, 1, 400)
        target = generator.choice(6, 450, p=to_shares)
        found = reweight(
            ("x",),
            x[:, None].astype(float),
            target[:, None].astype(float),
            seed=run,
            size=None if method == "weights" else 200,
        )
        assert found.problem is None, found.problem
        records = [text(f"t{index:03d}", 1, float(value)) for index, value in enumerate(y)]
        weights = {record.sample_id: float(w) for record, w in zip(records, found.weights, strict=True)}
        (named,) = [
            item
            for item in estimators(Evidence(samples=tuple(records)), context(), setup(weights), [])
            if item.name == "bits_per_byte"
        ]
        answer = uncertainty(
            Question(named.estimator, "cluster-bootstrap", (0.0, math.inf)), confidence=0.95, seed=run
        )
        scale = math.log(2)
        held += answer.interval.low * scale <= truth <= answer.interval.high * scale
        errors.append((named.estimator.value * scale - truth, delta_error(named.estimator) * scale))
    spread = float(np.std([error for error, _ in errors]))
    said = float(np.mean([error for _, error in errors]))
    assert held / runs >= 0.93
    assert said >= 0.95 * spread, (said, spread)
