"""Metrics of the user: sums over clusters, checked declarations, errors that name the record."""

from dataclasses import replace

import numpy as np
import pytest

from evalkit.errors import InputError
from evalkit.metrics import own
from evalkit.metrics.declared import declare_metrics
from evalkit.metrics.own import OwnMetric, own_setup
from evalkit.metrics.registry import spec_for
from evalkit.runs.evidence import Evidence
from evalkit.statistics.intervals import Question, uncertainty
from tests.evalkit.metrics.samples import context, text_record

MEAN = OwnMetric(
    name="own/nats_a_byte",
    unit="nats",
    direction="lower",
    evidence="text",
    state=lambda record: (record.nll, float(record.bytes_scored)),
    compute=lambda sums: sums[:, 0] / sums[:, 1],
    action="look at the data.",
    alarm=1.5,
)
SHARE = replace(
    MEAN,
    name="own/share",
    interval="exact-binomial",
    state=lambda record: (float(record.nll > 20), 1.0),
)


def records(count=40):
    generator = np.random.default_rng(0)
    return [
        text_record(
            f"t{index:02}",
            nll=float(generator.uniform(10, 30)),
            cluster=f"c{index % 20:02}",
            tags=["odd"] if index % 2 else [],
        )
        for index in range(count)
    ]


def named(metric, texts, **changes):
    found = own.estimators(Evidence(tuple(texts)), context(**changes), [metric])
    return {item.slice: item for item in found}


def test_the_value_is_the_ratio_of_sums_and_clusters_hold():
    texts = records()
    found = named(MEAN, texts, slices=("odd", "absent"))
    assert set(found) == {None, "odd"}
    estimator = found[None].estimator
    assert estimator.value == pytest.approx(
        sum(text.nll for text in texts) / sum(text.bytes_scored for text in texts)
    )
    assert estimator.n == 40 * 40 and len(estimator.clusters) == 20
    weights = np.random.default_rng(1).integers(0, 3, (5, 20)).astype(float)
    for row, value in zip(weights, estimator.replicates(weights), strict=True):
        times = [row[int(text.cluster[1:])] for text in texts]
        assert value == pytest.approx(
            np.dot(times, [text.nll for text in texts]) / np.dot(times, [text.bytes_scored for text in texts])
        )


def test_a_share_has_exact_bounds_and_a_mean_a_bootstrap():
    singles = [replace(text, cluster=text.sample_id) for text in records()]
    share = named(SHARE, singles)[None].estimator
    answer = uncertainty(Question(share, "exact-binomial"), confidence=0.95, seed=1)
    assert answer.interval.method == "exact-binomial"
    mean = named(MEAN, singles)[None].estimator
    answer = uncertainty(Question(mean, "cluster-bootstrap"), confidence=0.95, seed=1)
    assert answer.interval.low < mean.value < answer.interval.high


def test_records_that_failed_lower_the_coverage_and_none_is_left_out():
    texts = [*records(), text_record("bad", status="error", reason="x")]
    assert named(MEAN, texts)[None].coverage == 40 / 41
    some = replace(MEAN, state=lambda record: None if record.tags else (record.nll, 1.0))
    assert named(some, texts)[None].estimator.n == 20
    none = named(replace(MEAN, state=lambda record: None), texts)[None]
    assert none.estimator is None and "no usable text record" in none.reason


def test_an_undefined_value_is_null_with_a_reason():
    found = named(replace(MEAN, compute=lambda sums: sums[:, 0] * np.nan), records())[None]
    assert found.estimator.value is None and "no finite number" in found.reason


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"state": lambda record: record.absent},
            "own/nats_a_byte: state failed for record 't00' with AttributeError",
        ),
        ({"state": lambda record: ("many", 1)}, "state failed for record 't00' with ValueError"),
        ({"state": lambda record: (float("nan"), 1.0)}, "state gave .* for record 't00'; finite numbers"),
        ({"state": lambda record: ()}, "state gave .* finite numbers"),
        ({"state": lambda record: (1.0, -1.0)}, "the last one counting units"),
        ({"state": lambda record: (1.0,) * (1 + len(record.tags))}, r"state gives \[1, 2\] numbers"),
        ({"compute": lambda sums: 1 / 0}, "compute failed with ZeroDivisionError"),
        ({"compute": lambda sums: sums}, r"compute gave the shape \(1, 2\) for 1 rows"),
        ({"interval": "exact-binomial"}, r"needs the state \(successes, trials\)|is"),
    ],
)
def test_broken_code_is_named(change, message):
    with pytest.raises(InputError, match=message):
        named(replace(MEAN, **change), [replace(text, nll=text.nll + 40) for text in records()])


def test_a_share_must_be_the_counted_one():
    with pytest.raises(InputError, match="the counted share is"):
        named(replace(SHARE, compute=lambda sums: 0.5 * sums[:, 0] / sums[:, 1]), records())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("name='perplexity/token'", r"name: 'perplexity/token' isn't possible \(it begins with own/\)"),
        ("direction='up'", "direction: 'up'"),
        ("evidence='texts'", "evidence: 'texts'"),
        ("interval='fixed-population'", "interval: 'fixed-population'"),
        ("unit=''", "unit: ''"),
        ("alarm=float('inf')", "alarm: inf"),
    ],
)
def test_declarations_are_checked(tmp_path, change, message):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import replace\nfrom evalkit.metrics.own import OwnMetric\n"
        "good = OwnMetric('own/a', 'u', 'lower', 'text', lambda r: (1.0,), lambda s: s[:, 0], 'act', 1.0)\n"
        f"bad = replace(good, {change})\nplain = 3\n"
    )
    setup, metric = own_setup("mine:good", tmp_path)
    assert metric.spec.action == "above 1: act" and len(setup.sha256) == 64
    with pytest.raises(InputError, match=message):
        own_setup("mine:bad", tmp_path)
    with pytest.raises(InputError, match=r"an evalkit\.metrics\.own\.OwnMetric is needed \(got int\)"):
        own_setup("mine:plain", tmp_path)


def test_names_are_unique_and_the_registry_doesnt_know_them():
    with pytest.raises(InputError, match="two metrics have this name"):
        declare_metrics([], [], [MEAN, MEAN])
    declared = declare_metrics([], [], [MEAN])
    assert declared.spec("own/nats_a_byte").unit == "nats"
    with pytest.raises(InputError, match="unknown metric"):
        spec_for("own/nats_a_byte")
