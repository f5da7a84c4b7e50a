"""Power of rules: exact for shares that can be counted, with a pilot's spread for the rest, else a reason."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evalkit.gate.power import Pilot, RulePower, Units, power_of_rules
from evalkit.statistics.power import POWER, binomial_power, deciding_trials
from tests.evalkit.fake_run import BASELINE, EVIDENCE_ONE, compared, comparison, metric, policy, results


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
    # It must serve either truth: 0.9 is to pass, 0.7 to fail.
    assert found.power == pytest.approx(min(binomial_power(40, 0.8, share, 0.95) for share in (0.9, 0.7)))
    assert (deciding_trials(0.8, 0.9, 0.95), deciding_trials(0.8, 0.7, 0.95)) == (135, 204)
    assert found.needs_n == 204
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

    # One-sided bound 3.29 above the value: standard error 2.0 with 100 clusters, so 1.0 with 400; and the pilot knows its
    # own value within 2.0.
    error = 2.0
    high = 55.0 + error * float(norm.ppf(0.95))
    shown = pilot(metric("perplexity/long_tail", 55.0, 50.0, high, clusters=100))
    found = power(TAIL, Units(400, "clusters of texts"), shown)
    assert found.power == pytest.approx(float(norm.cdf((5.0 - norm.ppf(0.95)) / np.hypot(1.0, 2.0))))
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


def paired_pilot(name: str, *change: float, absolute: bool = False) -> Pilot:
    found = results([metric(name, 1.0, 0.9, 1.1)], EVIDENCE_ONE)
    pair = compared(name, *change, absolute=absolute)
    return Pilot("run pilot", found, comparison([pair], results([], EVIDENCE_ONE, BASELINE)))


def test_a_margin_is_planned_for_a_candidate_that_is_no_worse() -> None:
    """Whatever change the pilot happened to show: only its spread counts, and nothing is in doubt of it."""
    from scipy.stats import norm

    rule = {"metric": "perplexity/token", "change": {"max_relative_increase": 0.02}}
    z = float(norm.ppf(0.95))
    for shown in (-0.03, 0.0, 0.01):
        run = paired_pilot("perplexity/token", shown, shown - 0.01 * z, shown + 0.01 * z)
        found = power(rule, Units(400, "clusters of texts"), run)
        assert found.assumed == 0.0 and found.assumption is not None and "no true change" in found.assumption
        assert found.power == pytest.approx(float(norm.cdf(0.02 / 0.005 - z)))
        assert found.needs_n == int(np.ceil(100 * (2 * z * 0.01 / 0.02) ** 2))


def test_a_demanded_improvement_is_planned_with_the_pilots_own_change() -> None:
    rule = {"metric": "perplexity/token", "change": {"max_relative_increase": -0.05}}
    found = power(rule, Units(400, "clusters of texts"), paired_pilot("perplexity/token", -0.1, -0.11, -0.09))
    assert found.assumed == -0.1


@pytest.mark.parametrize(("baseline", "scale"), [(1.0, 1.0), (0.5, 0.5)])
def test_outcomes_that_differ_more_often_vary_more(baseline: float, scale: float) -> None:
    """Twice the margin of 0.05 lets 0.1 of the outcomes differ on top: variance 0.1 - 0.01 a cluster."""
    from scipy.stats import norm

    z = float(norm.ppf(0.95))
    relative = baseline != 1.0
    name = "max_relative_decrease" if relative else "max_decrease"
    rule = {"metric": "dialogue/resolution_rate", "change": {name: 0.05 / scale}}
    run = paired_pilot("dialogue/resolution_rate", 0.0, -0.03 * z / scale, 0.03 * z / scale)
    assert run.comparison is not None
    pair = replace(run.comparison.metrics[0], baseline=baseline)
    run = replace(run, comparison=replace(run.comparison, metrics=(pair,)))
    found = power(rule, Units(500, "dialogues", outcomes=True), run)
    error = np.sqrt(100 * 0.03**2 + 0.1 - 0.01)
    assert found.needs_n == int(np.ceil((2 * z * error / 0.05) ** 2))
    assert found.power == pytest.approx(float(norm.cdf(0.05 / (error / np.sqrt(500)) - z)))


def test_a_pilot_too_small_to_tell_the_side_names_no_size() -> None:
    shown = pilot(metric("perplexity/long_tail", 59.0, 50.0, 68.0))
    found = power(TAIL, Units(400, "clusters of texts"), shown)
    assert found.needs_n is None
    assert found.reason is not None and "too small to tell on which side" in found.reason


def test_a_size_without_an_interval_decides_nothing() -> None:
    # A value so far from the threshold that the spread alone would be content with one cluster.
    shown = pilot(metric("perplexity/long_tail", 5.0, 4.0, 6.0, clusters=100))
    enough = power(TAIL, Units(10, "clusters of texts"), shown)
    assert enough.needs_n == 10 and enough.power == pytest.approx(1.0)
    short = power(TAIL, Units(9, "clusters of texts"), shown)
    assert short.needs_n == 10 and short.power == 0.0
    assert short.reason == "only 9 independent clusters; an interval needs 10"


def test_what_min_n_asks_for_counts_too() -> None:
    rule = {**TAIL, "min_n": 5000}
    shown = pilot(metric("perplexity/long_tail", 5.0, 4.0, 6.0, n=2000, clusters=100))
    short = power(rule, Units(249, "clusters of texts"), shown)
    assert (short.needs_n, short.power) == (250, 0.0)
    assert short.reason == "min_n 5000 takes about 250 clusters of texts"
    enough = power(rule, Units(250, "clusters of texts"), shown)
    assert (enough.needs_n, enough.reason) == (250, None) and enough.power == pytest.approx(1.0)


def test_without_a_pilot_min_n_may_be_open() -> None:
    rule = {**PASSES, "min_n": 300}
    assert power(rule, Units(300, "dialogues", outcomes=True)).reason is None
    open_ = power(rule, Units(299, "dialogues", outcomes=True))
    assert open_.reason == "whether min_n 300 is reached a run named with --pilot tells"
