"""Power of rules: exact for shares that can be counted, with a pilot's spread for the rest, else a reason."""

from typing import Any

import pytest

from evalkit.gate.power import Pilot, RulePower, Units, power_of_rules
from evalkit.statistics.power import POWER, binomial_power, deciding_trials
from tests.evalkit.fake_run import EVIDENCE_ONE, metric, policy, results


def power(rule: dict[str, Any], units: Units, pilot: Pilot | None = None, **more: Any) -> RulePower:
    (found,) = power_of_rules(policy([rule]), lambda _: units, pilot, **more)
    return found


def pilot(*metrics: Any) -> Pilot:
    return Pilot("run pilot", results(metrics, EVIDENCE_ONE), None)


PASSES = {"metric": "dialogue/pass_hat_k", "k": 1, "min": 0.8}
TAIL = {"metric": "perplexity/long_tail", "max": 60}


def test_a_share_is_exact_half_way_to_perfection() -> None:
    found = power(PASSES, Units(40, "dialogues", outcomes=True))
    assert (found.assumed, found.n, found.method) == (pytest.approx(0.9), 40, "exact-binomial")
    assert found.power == pytest.approx(binomial_power(40, 0.8, 0.9, 0.95))
    assert found.needs_n == deciding_trials(0.8, 0.9, 0.95)
    assert found.assumption is not None and "half-way" in found.assumption


def test_a_pilot_gives_the_true_share() -> None:
    found = power(
        PASSES,
        Units(40, "dialogues", outcomes=True),
        pilot(metric("dialogue/pass_hat_k", 0.95, 0.9, 0.98, k=1)),
    )
    assert found.assumed == 0.95
    assert found.assumption is not None and "run pilot" in found.assumption


def test_a_ratio_needs_a_pilot() -> None:
    found = power(TAIL, Units(100, "clusters of texts"))
    assert found.power is None and found.needs_n is None
    assert found.reason is not None and "--pilot" in found.reason


def test_the_spread_of_a_pilot_is_scaled_to_the_planned_clusters() -> None:
    from scipy.stats import norm

    # One-sided bound 3.29 above the value: standard error 2.0 with 100 clusters, so 1.0 with 400.
    error = 2.0
    high = 55.0 + error * float(norm.ppf(0.95))
    shown = pilot(metric("perplexity/long_tail", 55.0, 50.0, high, clusters=100))
    found = power(TAIL, Units(400, "clusters of texts"), shown)
    assert found.power == pytest.approx(float(norm.cdf(5.0 / 1.0 - norm.ppf(0.95))))
    assert found.needs_n is not None
    again = power(TAIL, Units(found.needs_n, "clusters of texts"), shown)
    assert again.power is not None and again.power >= POWER
    fewer = power(TAIL, Units(found.needs_n - 1, "clusters of texts"), shown)
    assert fewer.power is not None and fewer.power < POWER


def test_what_no_sample_decides_says_so() -> None:
    fact = power(PASSES, Units(40, "dialogues", fact=True))
    assert fact.power is None and fact.reason is not None and "fixed list" in fact.reason
    edge = power({**PASSES, "min": 1.0}, Units(40, "dialogues", outcomes=True))
    assert edge.power is None and edge.reason is not None
    unknown = power(PASSES, Units(None, "dialogues", outcomes=True, reason="not known before a run"))
    assert (
        unknown.power is None and unknown.needs_n is not None and unknown.reason == "not known before a run"
    )


def test_change_rules_need_a_pilot_with_a_baseline() -> None:
    rule = {"metric": "perplexity/token", "change": {"max_relative_increase": 0.02}}
    alone = power(rule, Units(50, "clusters of texts"), pilot(metric("perplexity/token", 4.0, 3.9, 4.1)))
    assert alone.power is None and alone.reason is not None
    first = power(rule, Units(50, "clusters of texts"), first_release=True)
    assert first.reason == "first release: change rules are not applied"


def test_no_sample_at_all_has_no_power() -> None:
    shown = pilot(metric("perplexity/long_tail", 50.0, 45.0, 55.0))
    assert power(TAIL, Units(0, "clusters of texts"), shown).power == 0.0
    assert power(PASSES, Units(0, "dialogues", outcomes=True)).power == 0.0
