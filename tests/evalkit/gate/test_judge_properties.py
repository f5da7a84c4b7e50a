"""Whatever goes in, PASS comes out only where every blocking rule's bound clears its threshold."""

import math
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from evalkit.gate.comparison import ComparedMetric, Difference
from evalkit.gate.condition import Condition
from evalkit.gate.judge import judge
from evalkit.gate.verdict import Verdict
from evalkit.metrics.result import Interval, MetricResult
from evalkit.runs.results_io import STATUSES, Results
from evalkit.scenario.schema import Policy
from tests.evalkit.fake_run import BASELINE, EVIDENCE_ONE, compared, comparison, metric, policy, results

NAMES = ("perplexity/token", "perplexity/domain", "risk/high_risk_recall", "dialogue/consistency")
SLICES = (None, "vip")

anything = st.one_of(
    st.none(),
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 5e-324, -1e300, 1e300]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(min_value=-2, max_value=2),
)
intervals = st.one_of(
    st.none(),
    st.builds(
        Interval,
        low=anything,
        high=anything,
        confidence=st.sampled_from([0.95, 0.9, math.nan]),
        sides=st.sampled_from([1, 2]),
        method=st.sampled_from(["cluster-bootstrap", "exact-binomial", "fixed-population"]),
    ),
)


@st.composite
def metrics(draw: st.DrawFn) -> MetricResult:
    value = draw(anything)
    found = metric(draw(st.sampled_from(NAMES)), value, slice=draw(st.sampled_from(SLICES)))
    return replace(
        found,
        n=draw(st.integers(-1, 3) | st.just(1000)),
        coverage=draw(st.sampled_from([1.0, 0.5, None, math.nan])),
        bounds=draw(intervals),
        signature=draw(st.sampled_from(["a", "b"])),
    )


@st.composite
def changes(draw: st.DrawFn) -> ComparedMetric:
    def difference() -> Difference:
        value = draw(anything)
        return Difference(value, None if value is not None else "undefined", None, draw(intervals))

    return replace(
        compared(draw(st.sampled_from(NAMES)), None, None, None),
        slice=draw(st.sampled_from(SLICES)),
        absolute=difference(),
        relative=difference(),
        n=draw(st.integers(-1, 3)),
        coverage=draw(st.sampled_from([1.0, 0.5, None, math.nan])),
        baseline_signature=draw(st.sampled_from(["a", "b"])),
        signature=draw(st.sampled_from(["a", "b"])),
    )


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    threshold = draw(st.floats(-2, 2) | st.sampled_from([0.0, 1.0]))
    condition = draw(
        st.sampled_from(
            ["min", "max", "max_increase", "max_decrease", "max_relative_increase", "max_relative_decrease"]
        )
    )
    demand: dict[str, Any] = (
        {condition: threshold} if condition in ("min", "max") else {"change": {condition: threshold}}
    )
    return {
        "metric": draw(st.sampled_from(NAMES)),
        "slice": draw(st.sampled_from(SLICES)),
        "severity": draw(st.sampled_from(["block", "block", "warn"])),
        "min_coverage": draw(st.sampled_from([1.0, 0.4, 0.0])),
        **({"min_n": 2} if draw(st.booleans()) else {}),
        **demand,
    }


@st.composite
def runs(draw: st.DrawFn) -> tuple[Results, list[ComparedMetric] | None, Policy, bool]:
    found = replace(
        results(draw(st.lists(metrics(), max_size=5)), EVIDENCE_ONE),
        complete=draw(st.sampled_from([True, True, True, False])),
        counts={
            kind: {status: draw(st.integers(0, 2)) if status != "ok" else 50 for status in statuses}
            if draw(st.integers(0, 3)) == 0
            else {status: 50 if status == "ok" else 0 for status in statuses}
            for kind, statuses in STATUSES.items()
        },
    )
    pairs = draw(st.none() | st.lists(changes(), max_size=5))
    return found, pairs, policy(draw(st.lists(rules(), min_size=1, max_size=4))), draw(st.booleans())


def decide(run: tuple[Results, list[ComparedMetric] | None, Policy, bool]) -> Verdict:
    found, pairs, demanded, first_release = run
    together = None
    if pairs is not None:
        together = comparison(pairs, results([], EVIDENCE_ONE, BASELINE))
    return judge(found, together, demanded, first_release=first_release)


@settings(max_examples=600, deadline=None)
@given(runs())
def test_pass_only_where_every_blocking_bound_clears(run: Any) -> None:
    verdict = decide(run)
    found, pairs, demanded, first_release = run
    applied = 0
    for rule, outcome in zip(demanded.rules, verdict.rules, strict=True):
        condition = Condition.of(rule)
        if condition.kind == "change" and first_release:
            assert outcome.outcome == "NOT_APPLIED"
            continue
        applied += rule.severity == "block"
        if outcome.outcome == "PASS":
            assert_clears(rule, condition, found, pairs)
    if verdict.verdict == "PASS":
        assert applied > 0
        assert all(
            outcome.outcome == "PASS" or outcome.severity == "warn" or outcome.outcome == "NOT_APPLIED"
            for outcome in verdict.rules
        )


def assert_clears(
    rule: Any, condition: Condition, found: Results, pairs: list[ComparedMetric] | None
) -> None:
    """An independent statement of what a PASS promises."""
    assert found.complete
    items: Any = found.metrics if condition.kind == "absolute" else pairs
    (item,) = [one for one in items if (one.name, one.k, one.slice) == (rule.metric, rule.k, rule.slice)]
    source = item
    if condition.kind == "change":
        assert item.signature == item.baseline_signature
        source = item.relative if condition.relative else item.absolute
    bound = source.bounds.high if condition.direction == "lower" else source.bounds.low
    assert math.isfinite(source.value) and math.isfinite(bound)
    for number in (source.value, bound):
        assert (
            number <= condition.threshold if condition.direction == "lower" else number >= condition.threshold
        )
    assert item.n >= (rule.min_n or 1)
    assert rule.min_coverage == 0 or item.coverage >= rule.min_coverage
    assert (source.bounds.sides, source.bounds.confidence) == (1, 0.95)
    assert source.bounds.low < source.bounds.high or source.bounds.method == "fixed-population"


@settings(max_examples=200, deadline=None)
@given(runs())
def test_a_verdict_is_always_finite_json(run: Any) -> None:
    verdict = decide(run)
    assert verdict.to_bytes() == decide(run).to_bytes()
    for rule in verdict.rules:
        assert rule.reason
        assert (rule.needs_n is None) or rule.outcome == "INCONCLUSIVE"


@settings(max_examples=200, deadline=None)
@given(runs(), st.randoms(use_true_random=False))
def test_order_of_rules_and_metrics_never_matters(run: Any, random: Any) -> None:
    found, pairs, demanded, first_release = run
    order = list(range(len(demanded.rules)))
    random.shuffle(order)
    shuffled_metrics = list(found.metrics)
    random.shuffle(shuffled_metrics)
    shuffled_pairs = None if pairs is None else random.sample(pairs, len(pairs))
    other = decide(
        (
            replace(found, metrics=tuple(shuffled_metrics)),
            shuffled_pairs,
            Policy(rules=[demanded.rules[index] for index in order]),
            first_release,
        )
    )
    one = decide(run)
    assert one.verdict == other.verdict
    for place, index in enumerate(order):
        ours, theirs = one.rules[index].__dict__, other.rules[place].__dict__
        assert {**ours, "index": 0}.__repr__() == {**theirs, "index": 0}.__repr__()


@settings(max_examples=200, deadline=None)
@given(st.floats(0.5, 0.99), st.integers(1, 500))
def test_a_perfect_model_with_enough_dialogues_passes(minimum: float, dialogues: int) -> None:
    low = 0.05 ** (1 / dialogues)  # the exact lower bound where all pass
    bounds = Interval(low, 1.0, 0.95, 1, "exact-binomial")
    found = metric("dialogue/pass_hat_k", 1.0, k=1, n=dialogues, clusters=dialogues, bounds=bounds)
    rule = {"metric": "dialogue/pass_hat_k", "k": 1, "min": minimum}
    verdict = judge(results([found], EVIDENCE_ONE), None, policy([rule]))
    assert verdict.verdict == ("PASS" if low >= minimum else "INCONCLUSIVE")
    if verdict.verdict == "INCONCLUSIVE":
        needed = verdict.rules[0].needs_n
        assert needed is not None and 0.05 ** (1 / needed) > minimum
        assert 0.05 ** (1 / (needed - 1)) <= minimum or needed == dialogues + 1
