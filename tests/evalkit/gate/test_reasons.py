"""What a verdict says, word for word, and every field that it carries: nothing a reader leans on may change unnoticed."""

from dataclasses import replace
from typing import Any

import pytest

from evalkit.gate.comparison import Difference
from evalkit.gate.judge import judge
from evalkit.gate.policy import policy_digest
from evalkit.gate.verdict import RuleVerdict
from evalkit.metrics.result import Interval, MetricResult
from tests.evalkit.fake_run import (
    BASELINE,
    EVIDENCE_ONE,
    compared,
    comparison,
    interval,
    metric,
    policy,
    results,
)

TOKEN = "perplexity/token"
MAX: dict[str, Any] = {"metric": TOKEN, "max": 60}
CHANGE: dict[str, Any] = {"metric": TOKEN, "change": {"max_relative_increase": 0.02}}
FINE = metric(TOKEN, 50, 45, 55)
GOOD = compared(TOKEN, -0.031, -0.05, -0.012)
WITHIN: dict[str, Any] = {"metric": "latency/turn_overhead", "within_ms": 15, "share": 0.99}
UNMEASURED = "supply what the reason names, then measure and judge again"


def decided(
    found: list[MetricResult], rule: dict[str, Any], pair: Any = None, counts: Any = None, **fields: Any
) -> RuleVerdict:
    measured = replace(results(found, EVIDENCE_ONE), **({"counts": counts} if counts else {}))
    together = None
    if pair is not None:
        together = comparison([pair], results([], EVIDENCE_ONE, BASELINE), **fields)
    return judge(measured, together, policy([rule])).rules[0]


def budget(**fields: Any) -> MetricResult:
    bounds = {**interval(0.991, 1.0, 1).__dict__}
    entry = {"ms": 15.0, "share": 0.995, "n": 200, "clusters": 60, "bounds": bounds, **fields}
    return metric("latency/turn_overhead", 3.0, 2.5, 3.5, details={"within": [entry]})


@pytest.mark.parametrize(
    ("found", "rule", "reason"),
    [
        ([replace(FINE, n=0)], MAX, "nothing was measured (n is 0)"),
        ([replace(FINE, value=None, reason="gone")], MAX, "no value: gone"),
        ([metric(TOKEN, float("inf"), 45, 55)], MAX, "the value isn't a finite number (inf)"),
        ([replace(FINE, coverage=0.5)], MAX, "coverage 0.5 is below 1: planned samples gave no result"),
        ([replace(FINE, coverage=None)], MAX, "coverage unknown is below 1: planned samples gave no result"),
        ([replace(FINE, bounds=None)], MAX, "no confidence bounds: they could not be computed"),
        (
            [replace(FINE, bounds=None, details={"interval_reason": 5})],
            MAX,
            "no confidence bounds: they could not be computed",
        ),
        (
            [replace(FINE, bounds=interval(50, 50, 1))],
            MAX,
            "the interval is zero wide: the samples don't vary, so their spread says nothing",
        ),
        ([replace(FINE, bounds=interval(55, 45, 1))], MAX, "the bounds are out of order (55, 45)"),
        (
            [replace(FINE, bounds=Interval(45, 55, 0.95 + 1e-10, 1, "x"))],
            MAX,
            "the bounds are 1-sided at 0.95, the policy asks for one-sided ones at 0.95; judge the run again",
        ),
        ([replace(FINE, bounds=interval(None, 55, 1))], MAX, "one end of the interval could not be computed"),
        (
            [metric(TOKEN, 58, 50, 66)],
            MAX,
            "upper bound 66 is above 60, lower bound 50 is not: too few samples to decide",
        ),
        (
            [metric("risk/high_risk_recall", 0.9, 0.85, 0.95)],
            {"metric": "risk/high_risk_recall", "min": 0.88},
            "lower bound 0.85 is below 0.88, upper bound 0.95 is not: too few samples to decide",
        ),
        ([metric(TOKEN, 50, 45, 60)], MAX, "upper bound 60 is exactly at the threshold"),
        ([metric(TOKEN, 50, 45, 59.994)], MAX, "upper bound 59.99 is below 60"),
        ([metric(TOKEN, 50, 45, 59.9996)], MAX, "upper bound 59.9996 is below 60"),
        ([], WITHIN, "latency/turn_overhead isn't in the results"),
        (
            [metric("latency/turn_overhead", None, reason="no turn")],
            WITHIN,
            "the share within 15 ms was not measured; no turn",
        ),
        (
            [replace(metric("latency/turn_overhead", 1.0), reason=None)],
            WITHIN,
            "the share within 15 ms was not measured; ",
        ),
        ([budget(share=None)], WITHIN, "no share within 15 ms"),
        ([budget(n="200")], WITHIN, "nothing was measured (n is 0)"),
        (
            [budget(bounds="wide")],
            WITHIN,
            "latency/turn_overhead: within.bounds: a JSON object is needed; the file is damaged",
        ),
    ],
)
def test_reasons_of_one_model(found: list[MetricResult], rule: dict[str, Any], reason: str) -> None:
    assert decided(found, rule).reason == reason


@pytest.mark.parametrize(
    ("pair", "fields", "reason"),
    [
        (
            None,
            {},
            "no baseline was measured; give `baseline`, or `first_release: true` if there is none yet",
        ),
        (GOOD, {"model_digest": "f" * 64}, "the comparison is of another model than the results"),
        (
            GOOD,
            {"baseline_model_digest": "c" * 64, "model_digest": "c" * 64},
            "the comparison is of another model than the results",
        ),
        (
            replace(GOOD, signature="a", baseline_signature="b"),
            {},
            "measured in different ways, not comparable: a and b",
        ),
        (
            replace(GOOD, direction="higher"),
            {},
            "max_relative_increase limits an improvement of perplexity/token, not a regression",
        ),
        (replace(GOOD, relative=Difference(None, "it is 0")), {}, "no change: it is 0"),
        (
            replace(GOOD, relative=replace(GOOD.relative, bounds=None, interval_reason="few")),
            {},
            "no confidence bounds: few",
        ),
        (
            GOOD,
            {"baseline_complete": False},
            "the baseline's run is partial; finish it with `evalkit resume`",
        ),
    ],
)
def test_reasons_of_a_change(pair: Any, fields: dict[str, Any], reason: str) -> None:
    rule = decided([FINE], CHANGE, pair, **fields)
    assert (rule.reason, rule.action) == (reason, UNMEASURED)


def test_the_same_model_is_named() -> None:
    same = comparison([GOOD], results([], EVIDENCE_ONE, BASELINE))
    same = replace(same, baseline_model_digest=same.model_digest)
    rule = judge(results([FINE], EVIDENCE_ONE), same, policy([CHANGE])).rules[0]
    assert rule.reason == "candidate and baseline are the same model (equal model_digest)"


def test_a_comparison_of_nameless_models_is_none() -> None:
    nameless = comparison([GOOD], results([], EVIDENCE_ONE, BASELINE), model_digest="")
    measured = replace(results([FINE], EVIDENCE_ONE), model_digest="")
    assert "same model" in judge(measured, nameless, policy([CHANGE])).rules[0].reason


_CLEAN = {
    "text": {"ok": 8, "error": 0, "truncated": 0},
    "risk": {"ok": 8},
    "turn": {"ok": 8, "model_fault": 0},
}


@pytest.mark.parametrize(
    ("name", "kind", "status", "reason"),
    [
        (
            TOKEN,
            "text",
            "error",
            "2 of 10 texts of the candidate ended in an error; max_error_rate allows a share of 0",
        ),
        (
            TOKEN,
            "text",
            "truncated",
            "2 of 10 texts of the candidate were truncated; max_truncated_rate allows a share of 0",
        ),
        (
            "risk/high_risk_recall",
            "risk",
            "error",
            "2 of 10 decisions of the candidate ended in an error; max_error_rate allows a share of 0",
        ),
        (
            "dialogue/consistency",
            "turn",
            "infrastructure_fault",
            "2 of 10 turns of the candidate ended in an error; max_error_rate allows a share of 0",
        ),
    ],
)
def test_reasons_of_errors(name: str, kind: str, status: str, reason: str) -> None:
    counted = {**_CLEAN, kind: {**_CLEAN[kind], status: 2}}
    found = metric(name, 0.5, 0.4, 0.6)
    assert decided([found], {"metric": name, "min": 0.1}, counts=counted).reason == reason


@pytest.mark.parametrize("counted", [_CLEAN, {"risk": {"error": 3}}, {"text": {}}])
def test_statuses_that_nobody_counted_are_no_errors(counted: dict[str, Any]) -> None:
    """A status or kind that isn't listed has no record; other kinds of evidence don't matter."""
    assert decided([FINE], MAX, counts=counted).outcome == "PASS"


def test_errors_of_every_kind_open_a_figure_that_stands_on_all() -> None:
    counted = {**_CLEAN, "turn": {"ok": 9, "infrastructure_fault": 1}}
    found = replace(FINE, name="business/loss")
    measured = replace(results([found], EVIDENCE_ONE), counts=counted)
    verdict = judge(measured, None, policy([{"metric": "business/loss", "max": 60}]))
    assert verdict.rules[0].reason.startswith("1 of 10 turns of the candidate ended in an error")


def test_a_partial_candidate() -> None:
    measured = replace(results([FINE], EVIDENCE_ONE), complete=False)
    rule = judge(measured, None, policy([MAX])).rules[0]
    assert rule.reason == "the candidate's run is partial; finish it with `evalkit resume`"
    assert rule.action == UNMEASURED


def test_a_budget_carries_its_own_numbers() -> None:
    rule = decided([budget()], WITHIN)
    assert (rule.n, rule.clusters, rule.value, rule.unit) == (200, 60, 0.995, "share")
    assert (rule.within_ms, rule.coverage, rule.outcome) == (15.0, 1.0, "PASS")
    late = decided([budget(share=0.9, bounds=interval(0.85, 0.95, 1).__dict__)], WITHIN)
    assert late.outcome == "FAIL" and late.action == budget().action is not None
    # Without clusters of its own it has those of the metric.
    assert decided([budget(clusters=None)], WITHIN).clusters == budget().clusters == 100


def test_a_change_carries_its_own_numbers() -> None:
    pair = replace(
        compared(TOKEN, 0.5, 0.4, 0.6), n=77, clusters=33, coverage=1.0, unit="words", action="act"
    )
    relative = decided([FINE], CHANGE, pair)
    assert (relative.n, relative.clusters, relative.unit) == (77, 33, "relative change")
    assert (relative.outcome, relative.action) == ("FAIL", "act")
    absolute = decided([FINE], {"metric": TOKEN, "change": {"max_increase": 0.1}}, pair)
    assert absolute.unit == "words"
    # Also where it can't be judged, the reader sees what was measured.
    lost = decided([FINE], CHANGE, replace(pair, baseline_signature="other"))
    assert (lost.n, lost.clusters, lost.coverage, lost.unit) == (77, 33, 1.0, "words")


@pytest.mark.parametrize(
    ("rule", "unit"),
    [
        (CHANGE, "relative change"),
        ({"metric": TOKEN, "change": {"max_increase": 1.0}}, "ratio"),
        (MAX, "ratio"),
        ({"metric": "own/unknown", "max": 1.0}, None),
    ],
)
def test_the_unit_of_what_was_not_measured(rule: dict[str, Any], unit: str | None) -> None:
    assert decided([], rule).unit == unit


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (MAX, "perplexity/token"),
        ({**MAX, "slice": "vip"}, "perplexity/token [vip]"),
        ({"metric": "dialogue/pass_hat_k", "k": 3, "min": 0.8}, "dialogue/pass_hat_k k=3"),
        (
            {"metric": "dialogue/pass_hat_k", "k": 2, "slice": "zh", "min": 0.8},
            "dialogue/pass_hat_k k=2 [zh]",
        ),
    ],
)
def test_rules_are_named_in_the_sentence(rule: dict[str, Any], name: str) -> None:
    verdict = judge(results([], EVIDENCE_ONE), None, policy([rule]))
    assert verdict.reason == f"1 of 1 blocking rules could not be decided: {name}"


def test_the_sentence_of_each_verdict() -> None:
    bad, open_ = metric("bits_per_byte", 3.0, 2.5, 3.5), metric("perplexity/byte", 2.0, 1.5, 2.5)
    every = results([FINE, bad, open_], EVIDENCE_ONE)
    failing = {"metric": "bits_per_byte", "max": 2.0}
    undecided = {"metric": "perplexity/byte", "max": 2.2}

    def says(*rules: dict[str, Any]) -> str:
        return judge(every, None, policy(rules)).reason

    assert says(MAX, MAX) == "all 2 blocking rules passed"
    assert says(MAX, failing, failing) == "2 of 3 blocking rules failed: bits_per_byte, bits_per_byte"
    assert says(MAX, undecided) == "1 of 2 blocking rules could not be decided: perplexity/byte"
    assert says({**MAX, "severity": "warn"}) == "every rule is `severity: warn`, so nothing was decided"


def test_the_whole_verdict() -> None:
    demanded = policy([MAX, CHANGE, {**MAX, "severity": "warn"}])
    together = comparison([GOOD], results([], EVIDENCE_ONE, BASELINE))
    measured = results([FINE], EVIDENCE_ONE)
    verdict = judge(measured, together, demanded)
    assert [rule.index for rule in verdict.rules] == [0, 1, 2]
    assert verdict.run_id == measured.run_id
    assert verdict.policy_sha256 == policy_digest(demanded)
    assert (verdict.first_release, verdict.look) == (False, 1)
    assert verdict.false_fail_probability == pytest.approx(0.1)
    assert verdict.false_fail_assumption == (
        "number of blocking rules times (1 - confidence), at most 1; it holds however the rules depend on each "
        "other and is reached only if every true value lies exactly at its threshold"
    )
    assert [(rule.severity, rule.kind) for rule in verdict.rules] == [
        ("block", "absolute"),
        ("block", "change"),
        ("warn", "absolute"),
    ]


def test_every_rule_keeps_its_place() -> None:
    lost = {"metric": "bits_per_byte", "max": 2.0}
    open_ = {"metric": TOKEN, "max": 52}
    rules = policy([MAX, CHANGE, lost, open_])
    verdict = judge(results([FINE], EVIDENCE_ONE), None, rules, first_release=True)
    assert [(rule.index, rule.outcome, rule.needs_n is None) for rule in verdict.rules] == [
        (0, "PASS", True),
        (1, "NOT_APPLIED", True),
        (2, "INCONCLUSIVE", True),
        (3, "INCONCLUSIVE", False),
    ]


def test_min_n_alone_asks_for_min_n() -> None:
    """Decided but for its number; and enough of them but undecided."""
    few = decided([metric(TOKEN, 50, 40.1, 59.9, n=10)], {**MAX, "min_n": 11})
    assert (few.needs_n, few.reason) == (11, "n 10 is below min_n 11")
    enough = decided([metric(TOKEN, 58, 50, 66, n=100)], {**MAX, "min_n": 50})
    assert enough.needs_n == 6400 and enough.reason.startswith("upper bound 66 is above 60")


def test_a_warning_rule_that_is_open_warns_too() -> None:
    open_ = metric(TOKEN, 58, 50, 66)
    rules = [{"metric": "bits_per_byte", "max": 9.0}, {**MAX, "severity": "warn"}]
    verdict = judge(results([open_, metric("bits_per_byte", 1, 0.9, 1.1)], EVIDENCE_ONE), None, policy(rules))
    assert verdict.verdict == "PASS" and verdict.warning is not None


def test_not_applied_says_why() -> None:
    verdict = judge(results([FINE], EVIDENCE_ONE), None, policy([CHANGE, MAX]), first_release=True)
    rule = verdict.rules[0]
    assert rule.reason == "first release: there is no baseline to compare with, so this rule is not applied"
    assert (rule.value, rule.n, rule.action, rule.needs_n, rule.unit) == (
        None,
        None,
        None,
        None,
        "relative change",
    )


@pytest.mark.parametrize(
    ("name", "nouns"),
    [(TOKEN, "texts"), ("risk/auc", "decisions"), ("dialogue/consistency", "dialogues")],
)
def test_what_to_add(name: str, nouns: str) -> None:
    """Value 58, bound 66 at 60, n 100: the error must shrink to 2 / (2 z)."""
    found = metric(name, 58, 50, 66, n=100)
    rule = decided([found], {"metric": name, "max": 60})
    assert rule.needs_n == 6400
    assert rule.action == f"add {nouns}: 64 times as many as now (n 100 → 6400)"


def test_what_to_add_to_a_figure_that_stands_on_all() -> None:
    found = replace(metric(TOKEN, 58, 50, 66, n=100), name="business/loss")
    rule = decided([found], {"metric": "business/loss", "max": 60})
    assert rule.action == "add texts and decisions and dialogues: 64 times as many as now (n 100 → 6400)"


def test_a_value_at_the_threshold_names_no_size() -> None:
    rule = decided([metric(TOKEN, 60, 50, 70)], MAX)
    assert rule.needs_n is None
    assert (
        rule.action == "add texts; the value lies so near to the threshold that no sample size can be named"
    )


@pytest.mark.parametrize(("n", "needs"), [(100, 6400), (6000, 384_000)])
def test_min_n_and_an_open_rule_ask_for_the_larger(n: int, needs: int) -> None:
    rule = decided([metric(TOKEN, 58, 50, 66, n=n)], {**MAX, "min_n": 7000})
    assert rule.needs_n == max(needs, 7000)
    assert rule.reason == f"n {n} is below min_n 7000"


def test_clusters_of_outcomes_name_their_size_by_cluster() -> None:
    bounds = Interval(0.74, 1.0, 0.95, 1, "exact-binomial-effective-n")
    found = metric("dialogue/consistency", 1.0, n=40, clusters=10, bounds=bounds)
    assert decided([found], {"metric": "dialogue/consistency", "min": 0.8}).needs_n == 56


@pytest.mark.parametrize(
    ("data", "learnt"), [("generated", "generated examples"), (None, "examples of unknown origin")]
)
def test_unrated_predictions(data: str | None, learnt: str) -> None:
    name = "dialogue/satisfaction"
    found = metric(name, 4.5, 4.4, 4.6, details={"predictor_data": data})
    rule = {"metric": name, "min": 4.0}
    assert decided([found], rule).reason == (
        f"dialogue/satisfaction is predicted by a model that learnt from {learnt}; a blocking rule needs a model card "
        "of rated samples (`sandbox fit satisfaction RATED.csv --rated`), or make it `severity: warn`"
    )
    assert decided([found], {**rule, "severity": "warn"}).outcome == "PASS"
    rated = replace(found, details={"predictor_data": "rated"})
    assert decided([rated], rule).outcome == "PASS"


def test_a_rule_shows_the_unit_that_was_measured() -> None:
    """Which may be another than the declared one (a business figure), for one model as for a change."""
    assert decided([replace(FINE, unit="words a text")], MAX).unit == "words a text"
    own = replace(FINE, name="business/loss", unit="€")
    assert decided([own], {"metric": "business/loss", "max": 60}).unit == "€"
