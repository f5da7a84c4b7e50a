"""Policies: their digest, and the mistakes that are found before anything runs."""

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from evalkit.errors import InputError
from evalkit.gate.condition import Condition
from evalkit.gate.policy import (
    check_policy,
    load_policy,
    policy_digest,
    policy_problem,
    resolve_policy,
    rule_problem,
    undecided,
)
from evalkit.metrics.registry import metric_names, spec_for
from evalkit.metrics.spec import MetricSpec
from evalkit.scenario.schema import Policy, Rule
from evalkit.yaml_source import YamlSource

TEXT = """\
confidence: 0.95
rules:
  - {metric: perplexity/long_tail, max: 60}
  - {metric: perplexity/domain, change: {max_relative_increase: 0.02}}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "policy.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_and_spelling_do_not_change_the_digest(tmp_path: Path) -> None:
    short = load_policy(write(tmp_path, TEXT))
    long = load_policy(
        write(
            tmp_path,
            """\
max_error_rate: 0.0
confidence: 0.95
max_truncated_rate: 0
rules:
  - metric: perplexity/long_tail
    severity: block
    max: 60.0
    min_coverage: 1
  - {change: {max_relative_increase: 2e-2}, metric: perplexity/domain}
""",
        )
    )
    assert policy_digest(short) == policy_digest(long)


@pytest.mark.parametrize(
    "edit",
    [("60", "61"), ("0.02", "0.03"), ("0.95", "0.9"), ("long_tail", "oov"), ("0.02}", "0.02}, min_n: 9")],
)
def test_every_edit_changes_the_digest(tmp_path: Path, edit: tuple[str, str]) -> None:
    one = load_policy(write(tmp_path, TEXT))
    other = load_policy(write(tmp_path, TEXT.replace(*edit)))
    assert policy_digest(one) != policy_digest(other)


def test_the_embedded_policy_reads_back(tmp_path: Path) -> None:
    policy = load_policy(write(tmp_path, TEXT))
    again = Policy.model_validate(resolve_policy(policy))
    assert policy_digest(again) == policy_digest(policy)
    assert [Condition.of(rule) for rule in again.rules] == [Condition.of(rule) for rule in policy.rules]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            TEXT.replace("long_tail", "longtail"),
            "rules.0.metric: unknown metric 'perplexity/longtail'; did you mean",
        ),
        (TEXT.replace("increase", "decrease"), "this limits an improvement, not a regression"),
        (
            TEXT.replace("max: 60", "min: 60"),
            "policy.yaml:3: rules.0.min: perplexity/long_tail is better when lower: `min` would fail a good model "
            "and pass a bad one; write `max: 60` if that is the limit",
        ),
        (TEXT.replace("60", ".nan"), "policy.yaml:3: rules.0.max"),
        (TEXT.replace("60", ".inf"), "policy.yaml:3: rules.0.max"),
        (TEXT.replace("max: 60", "max: 60, min: 3"), "give exactly one of min, max, change, within_ms"),
        (TEXT.replace("max: 60", "maximum: 60"), "unknown key"),
        (TEXT.replace("{max_relative_increase: 0.02}", "{}"), "give exactly one of"),
        (TEXT.replace("{max_relative_increase: 0.02}", "{max_increase: null}"), "give exactly one of"),
        ("rules: []\n", "rules"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        load_policy(write(tmp_path, text))
    message = str(caught.value)
    assert says in message
    assert "policy.yaml:" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("rule", "fine"),
    [
        ({"metric": "risk/high_risk_recall", "change": {"max_decrease": 0.02}}, True),
        ({"metric": "risk/high_risk_recall", "change": {"max_increase": 0.02}}, False),
        ({"metric": "risk/false_reject_rate", "change": {"max_relative_increase": 0.02}}, True),
        ({"metric": "latency/first_token", "within_ms": 15, "share": 0.9}, True),
        ({"metric": "perplexity/nonsense", "max": 1}, False),
        ({"metric": "risk/false_reject_rate", "max": 10}, False),
        ({"metric": "risk/high_risk_recall", "min": -3}, False),
        ({"metric": "risk/high_risk_recall", "min": 95}, False),
        ({"metric": "risk/high_risk_recall", "min": 1}, True),
        ({"metric": "risk/high_risk_recall", "change": {"max_decrease": 2}}, False),
        ({"metric": "risk/false_reject_rate", "change": {"max_relative_increase": 2}}, True),
        ({"metric": "risk/high_risk_recall", "change": {"max_decrease": 1}}, False),
        ({"metric": "risk/high_risk_recall", "change": {"max_decrease": 0.99}}, True),
        ({"metric": "risk/high_risk_recall", "min": 0}, False),
        ({"metric": "risk/false_reject_rate", "max": 1}, False),
        ({"metric": "risk/false_reject_rate", "max": 0}, True),
        ({"metric": "risk/false_reject_rate", "change": {"max_increase": 1}}, False),
        ({"metric": "risk/high_risk_recall", "change": {"max_relative_decrease": 5}}, False),
        ({"metric": "risk/high_risk_recall", "change": {"max_relative_decrease": 1}}, False),
        ({"metric": "risk/high_risk_recall", "change": {"max_relative_decrease": 0.99}}, True),
        ({"metric": "perplexity/token", "change": {"max_relative_increase": -1.5}}, False),
        ({"metric": "dialogue/handover_rate", "min": 0}, False),
        ({"metric": "latency/first_token", "within_ms": 15, "share": 0.999}, True),
        ({"metric": "latency/first_token", "within_ms": 15, "share": 0.001}, True),
        ({"metric": "dialogue/consistency_fall", "change": {"max_relative_increase": -3}}, True),
        ({"metric": "dialogue/pass_hat_k", "k": 3, "min": 80}, False),
        ({"metric": "dialogue/consistency_fall", "max": -0.5}, True),
        ({"metric": "dialogue/consistency_fall", "change": {"max_increase": 1.5}}, True),
        ({"metric": "dialogue/consistency_fall", "change": {"max_increase": 2.5}}, False),
        ({"metric": "perplexity/token", "max": 0.9}, False),
        ({"metric": "perplexity/token", "change": {"max_increase": 500}}, True),
        ({"metric": "business/unknown_here", "max": 10}, True),
    ],
)
def test_a_rule_that_can_never_fail_is_refused(rule: dict[str, object], fine: bool) -> None:
    assert (rule_problem(Rule.model_validate(rule)) is None) == fine


@pytest.mark.parametrize("metric", sorted(metric_names()))
def test_an_absolute_limit_stands_on_the_bad_side(metric: str) -> None:
    """Every metric of the registry: a floor where higher is better, a ceiling where lower is, both where both can be bad."""
    spec, k = spec_for(metric), {"k": 1} if metric == "dialogue/pass_hat_k" else {}
    inside = {"ratio": 2.0, "rank": 2.0, "score 1-5": 2.0}.get(spec.unit, 0.5)
    fine = {
        name
        for name in ("min", "max")
        if rule_problem(Rule.model_validate({"metric": metric, name: inside, **k})) is None
    }
    usual = "max" if spec.direction == "lower" else "min"
    assert fine == ({"min", "max"} if spec.two_sided else {usual})


def test_which_metrics_can_be_bad_on_either_side() -> None:
    names = {name for name in metric_names() if spec_for(name).two_sided}
    assert {name for name in names if not name.startswith("logits/entropy")} == {"dialogue/handover_rate"}
    assert "logits/entropy" in names and "logits/entropy/long_tail" in names
    assert spec_for("robustness/typos/logits/entropy").two_sided
    assert not spec_for("robustness/typos/perplexity/token").two_sided


def test_a_warning_on_the_wrong_side_is_refused_too() -> None:
    rule = Rule.model_validate({"metric": "risk/high_risk_recall", "max": 0.9, "severity": "warn"})
    assert rule_problem(rule) == (
        ("max",),
        "risk/high_risk_recall is better when higher: `max` would fail a good model and pass a bad one; "
        "write `min: 0.9` if that is the limit",
    )


def test_only_a_policy_without_a_blocking_rule_decides_nothing() -> None:
    rule = {"metric": "perplexity/token", "max": 60}
    warns = {**rule, "severity": "warn"}
    assert undecided(Policy.model_validate({"rules": [rule, warns]})) is None
    assert undecided(Policy.model_validate({"rules": [warns]})) == (
        "every rule is `severity: warn`",
        "let one rule block",
    )


def test_changes_alone_decide_no_first_release() -> None:
    change = {"metric": "perplexity/token", "change": {"max_relative_increase": 0.1}}
    value = {"metric": "perplexity/token", "max": 60}
    warns = {**value, "severity": "warn"}
    alone = Policy.model_validate({"rules": [change, warns]})
    assert undecided(alone) is None
    assert undecided(alone, first_release=True) == (
        "every blocking rule is about change, which a first release doesn't apply",
        "let one block on the value itself",
    )
    assert undecided(Policy.model_validate({"rules": [change, value]}), first_release=True) is None


@pytest.mark.parametrize(
    ("again", "twice"),
    [
        ("{max: 60.0, metric: perplexity/long_tail, severity: block, min_coverage: 1}", True),
        ("{metric: perplexity/long_tail, max: 61}", False),
        ("{metric: perplexity/long_tail, max: 60, severity: warn}", False),
        ("{metric: perplexity/long_tail, max: 60, min_n: 9}", False),
        ("{metric: perplexity/long_tail, max: 60, slice: vip}", False),
    ],
)
def test_the_same_rule_twice_is_refused(tmp_path: Path, again: str, twice: bool) -> None:
    path = write(tmp_path, f"{TEXT}  - {again}\n")
    if not twice:
        assert len(load_policy(path).rules) == 3
        return
    with pytest.raises(InputError) as caught:
        load_policy(path)
    assert str(caught.value) == f"{path}:5: rules.2: the same rule as rules.0; remove one of the two"


def test_only_a_latency_lies_within_a_budget() -> None:
    budget = {"within_ms": 15, "share": 0.5}
    assert rule_problem(Rule.model_validate({"metric": "latency/per_token", **budget})) is None
    for metric in ("dialogue/satisfaction", "perplexity/token", "cache/reuse_ratio"):
        assert rule_problem(Rule.model_validate({"metric": metric, **budget})) == (
            ("within_ms",),
            f"{metric} isn't a latency; a share within a budget is that of a latency/ metric",
        )


def test_the_field_tells_where_in_its_file_a_policy_stands(tmp_path: Path) -> None:
    rule = {"rules": [{"metric": "perplexity/tokn", "max": 60}]}
    for text, at in (
        (json.dumps(rule), "rules.0.metric"),
        (json.dumps({"gate": rule}), "gate.rules.0.metric"),
    ):
        path = write(tmp_path, text)
        with pytest.raises(InputError) as caught:
            check_policy(Policy.model_validate(rule), YamlSource(path))
        assert str(caught.value).startswith(f"{path}:1: {at}: unknown metric")


def test_the_first_problem_of_a_policy_is_named() -> None:
    fine, wrong = {"metric": "perplexity/token", "max": 60}, {"metric": "perplexity/tokn", "max": 60}
    assert policy_problem(Policy.model_validate({"rules": [fine]})) is None
    found = policy_problem(Policy.model_validate({"rules": [fine, wrong, fine]}))
    assert found is not None and found[0] == ("rules", 1, "metric")
    twice = policy_problem(Policy.model_validate({"rules": [fine, {**fine, "max": 61}, fine]}))
    assert twice == (("rules", 2), "the same rule as rules.0; remove one of the two")
    own = policy_problem(Policy.model_validate({"rules": [{"metric": "own/x", "max": 1}]}), {})
    assert own is not None and "doesn't declare own/x" in own[1]


def test_a_percentage_where_a_share_is_meant_is_told_with_its_range(tmp_path: Path) -> None:
    text = "rules:\n  - {metric: risk/false_reject_rate, max: 10}\n"
    with pytest.raises(InputError) as caught:
        load_policy(write(tmp_path, text))
    assert str(caught.value).endswith(
        "policy.yaml:2: rules.0.max: values of risk/false_reject_rate lie between 0 and 1: "
        "this rule decides nothing (10 % is written 0.1)"
    )


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            {"metric": "risk/false_reject_rate", "change": {"max_increase": 2}},
            "changes of risk/false_reject_rate lie between -1 and 1: this rule decides nothing (10 % is written 0.1)",
        ),
        (
            {"metric": "dialogue/satisfaction", "min": 80},
            "values of dialogue/satisfaction lie between 1 and 5: this rule decides nothing",
        ),
        (
            {"metric": "risk/high_risk_recall", "change": {"max_relative_decrease": 5}},
            "relative changes of risk/high_risk_recall lie between -1 and inf: this rule decides nothing "
            "(10 % is written 0.1)",
        ),
        (
            {"metric": "perplexity/token", "change": {"max_relative_increase": -2}},
            "relative changes of perplexity/token lie between -1 and inf: this rule decides nothing "
            "(10 % is written 0.1)",
        ),
        (
            {"metric": "dialogue/satisfaction", "change": {"max_decrease": 5}},
            "changes of dialogue/satisfaction lie between -4 and 4: this rule decides nothing",
        ),
    ],
)
def test_a_threshold_out_of_reach_is_told_with_its_range(rule: dict[str, object], message: str) -> None:
    found = rule_problem(Rule.model_validate(rule))
    assert found is not None and found[1] == message


@pytest.mark.parametrize(
    ("rule", "condition"),
    [
        ({"metric": "m", "min": 3}, Condition("absolute", "min", "higher", 3.0)),
        ({"metric": "m", "max": 3}, Condition("absolute", "max", "lower", 3.0)),
        ({"metric": "m", "change": {"max_increase": 3}}, Condition("change", "max_increase", "lower", 3.0)),
        ({"metric": "m", "change": {"max_decrease": 3}}, Condition("change", "max_decrease", "higher", -3.0)),
        (
            {"metric": "m", "change": {"max_relative_decrease": 0.1}},
            Condition("change", "max_relative_decrease", "higher", -0.1, relative=True),
        ),
        ({"metric": "m", "within_ms": 15, "share": 0.9}, Condition("within", "within_ms", "higher", 0.9)),
    ],
)
def test_conditions(rule: dict[str, object], condition: Condition) -> None:
    assert Condition.of(Rule.model_validate(rule)) == condition


def test_nan_never_clears_or_violates() -> None:
    for condition in (
        Condition("absolute", "max", "lower", 1.0),
        Condition("absolute", "min", "higher", 1.0),
    ):
        assert not condition.clears(float("nan"))
        assert not condition.violates(float("nan"))


DECLARED = {
    name: replace(spec_for("perplexity/token"), name=name, direction=direction)
    for name, direction in (
        ("own/politeness", "higher"),
        ("own/polite_turns", "higher"),
        ("own/loss", "lower"),
    )
}


@pytest.mark.parametrize(
    ("metric", "declared", "message"),
    [
        ("own/politeness", DECLARED, None),
        ("own/anything", None, None),  # no scenario at hand: it can't be known
        (
            "own/politenes",
            DECLARED,
            "the scenario doesn't declare own/politenes (did you mean own/politeness or own/polite_turns?)",
        ),
        (
            "own/polite",
            DECLARED,
            "the scenario doesn't declare own/polite (did you mean own/politeness or own/polite_turns?)",
        ),
        (
            "business/zzzzzzzzzz",
            DECLARED,
            "the scenario doesn't declare business/zzzzzzzzzz (it declares: own/politeness, own/polite_turns, own/loss)",
        ),
        ("own/x", {}, "the scenario doesn't declare own/x (it declares: none)"),
    ],
)
def test_metrics_of_the_scenarios_own(
    metric: str, declared: dict[str, MetricSpec] | None, message: str | None
) -> None:
    side = "min" if metric == "own/politeness" else "max"
    rule = Rule.model_validate({"metric": metric, side: 2})
    assert rule_problem(rule, declared) == (None if message is None else (("metric",), message))


def test_the_direction_of_a_metric_of_the_scenarios_own() -> None:
    falls = Rule.model_validate({"metric": "own/loss", "change": {"max_decrease": 0.1}})
    assert rule_problem(falls, DECLARED) == (
        ("change", "max_decrease"),
        "own/loss is better when lower: this limits an improvement, not a regression",
    )
    rises = Rule.model_validate({"metric": "own/loss", "change": {"max_increase": 0.1}})
    assert rule_problem(rises, DECLARED) is None
    floor = Rule.model_validate({"metric": "own/loss", "min": 2})
    found = rule_problem(floor, DECLARED)
    assert found is not None and found[0] == ("min",) and "own/loss is better when lower" in found[1]
    assert rule_problem(floor) is None  # no scenario at hand: it can't be known
    both = {"own/loss": replace(DECLARED["own/loss"], two_sided=True)}
    assert rule_problem(floor, both) is None


def test_a_file_is_checked_against_what_is_declared(tmp_path: Path) -> None:
    path = write(tmp_path, TEXT.replace("perplexity/domain", "own/loss"))
    assert load_policy(path).rules[1].metric == "own/loss"
    assert load_policy(path, DECLARED).rules[1].metric == "own/loss"
    path = write(tmp_path, TEXT.replace("perplexity/domain", "own/losses"))
    with pytest.raises(
        InputError, match=r"policy.yaml:4: rules.1.metric: the scenario doesn't declare own/losses"
    ):
        load_policy(path, DECLARED)


class _Dated(Policy):
    """A policy as it might grow: with fields whose values JSON doesn't know."""

    since: date
    owners: tuple[str, ...]


def test_the_embedded_policy_holds_json_values_only() -> None:
    """Whatever fields it gets: the verdict is JSON, and its reader must find what the digest was made of."""
    rules = [{"metric": "perplexity/token", "max": 60}]
    grown = _Dated.model_validate({"rules": rules, "since": date(2026, 11, 30), "owners": ("risk", "ml")})
    resolved = resolve_policy(grown)
    assert json.loads(json.dumps(resolved)) == resolved
    assert (resolved["since"], resolved["owners"]) == ("2026-11-30", ["risk", "ml"])


def test_at_most_three_names_are_offered() -> None:
    spec = spec_for("perplexity/token")
    declared = {
        name: replace(spec, name=name) for name in ("own/loss1", "own/loss2", "own/loss3", "own/loss4")
    }
    found = rule_problem(Rule.model_validate({"metric": "own/loss", "max": 1}), declared)
    assert found is not None and found[1].count("own/loss") == 4
