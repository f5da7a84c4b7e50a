"""Raking against exact answers and numpy's own loop; caps, bins, draws, floors."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalkit.errors import InputError
from evalkit.resampling.bins import Bins, shift_p_value, total_variation
from evalkit.resampling.draw import draw
from evalkit.resampling.raking import capped, rake
from evalkit.resampling.reweighting import ReweightingSettings, effective_size, reweight


def two_features(seed, size, length, share):
    generator = np.random.default_rng(seed)
    density = generator.exponential(1.0, size) * (generator.random(size) < share)
    return np.column_stack([generator.poisson(length, size).astype(float), np.round(density, 1)])


def test_one_feature_is_poststratification():
    codes = np.array([[1]] * 60 + [[2]] * 40)
    weights = rake(codes, [np.array([0.0, 0.3, 0.7, 0.0])], cap=10)
    assert weights[:60] == pytest.approx(0.3 / 0.6)
    assert weights[60:] == pytest.approx(0.7 / 0.4)


def test_two_features_meet_both_marginals_and_keep_the_odds_ratio():
    """Deming & Stephan: the marginals are the target's, the association within the table stays the sample's."""
    table = np.array([[30, 20], [10, 40]])
    codes = np.array([[row + 1, column + 1] for (row, column), n in np.ndenumerate(table) for _ in range(n)])
    targets = [np.array([0, 0.35, 0.65, 0]), np.array([0, 0.6, 0.4, 0])]
    weights = rake(codes, targets, cap=10)
    fitted = np.zeros((2, 2))
    np.add.at(fitted, tuple(codes.T - 1), weights)
    assert fitted.sum(axis=1) / fitted.sum() == pytest.approx([0.35, 0.65])
    assert fitted.sum(axis=0) / fitted.sum() == pytest.approx([0.6, 0.4])
    odds = table[0, 0] * table[1, 1] / (table[0, 1] * table[1, 0])
    assert fitted[0, 0] * fitted[1, 1] / (fitted[0, 1] * fitted[1, 0]) == pytest.approx(odds)


def test_raking_is_the_nearest_table_in_relative_entropy():
    """An independent way to the same weights: scipy minimises sum w log w under the marginals."""
    from scipy.optimize import minimize

    validation, target = two_features(1, 60, 9, 0.5), two_features(2, 80, 11, 0.7)
    bins = Bins.of(("a", "b"), validation, 3)
    codes, wanted = bins.codes(validation), bins.marginals(bins.codes(target))
    covered = [
        np.where(np.bincount(codes[:, f], minlength=len(part)) > 0, part, 0) for f, part in enumerate(wanted)
    ]
    covered = [part / part.sum() for part in covered]
    weights = rake(codes, wanted, cap=60)
    indicators = [(codes[:, f] == k, part[k]) for f, part in enumerate(covered) for k in range(len(part))]
    held = np.array([indicator for indicator, _ in indicators if indicator.any()], dtype=float)
    shares = np.array([share for indicator, share in indicators if indicator.any()])

    # The dual of the entropy problem: w = exp(sum of multipliers of the text's bins).
    def dual(multipliers):
        values = np.exp(held.T @ multipliers)
        return values.sum() - 60 * shares @ multipliers, held @ values - 60 * shares

    found = minimize(dual, np.zeros(len(shares)), jac=True, method="BFGS", options={"gtol": 1e-8})
    assert weights == pytest.approx(np.exp(held.T @ found.x), rel=1e-4)


def test_caps_hold_and_what_they_take_stays_in_the_bin_where_it_can():
    codes = np.array([[1, 1]] * 3 + [[1, 2]] * 47 + [[2, 1]] * 50)
    targets = [np.array([0, 0.5, 0.5, 0]), np.array([0, 0.9, 0.1, 0])]
    free, held = rake(codes, targets, cap=100), rake(codes, targets, cap=3)
    assert free.max() > 3
    assert held.max() <= 3 + 1e-9
    assert held.mean() == pytest.approx(1)
    assert held[3:50].mean() > free[3:50].mean()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.floats(1.01, 20))
def test_capped_weights_have_mean_one_and_keep_their_order(values, cap):
    weights = np.array(values)
    out = capped(weights, cap)
    if not weights.any():
        assert not out.any()
        return
    assert out.mean() == pytest.approx(1)
    positive = np.count_nonzero(out)
    assert ((out > 0) == ((weights / weights.max()) >= 1e-12)).all()
    if positive * cap > len(weights):
        assert out.max() <= cap * (1 + 1e-9)
    order = np.argsort(weights, kind="stable")
    assert (np.diff(out[order]) >= -1e-9 * max(1, out.max())).all()


def test_bins_are_those_of_the_validation_set():
    values = np.array([[1.0], [1], [1], [2], [3], [4], [5], [6]])
    bins = Bins.of(("length",), values, 4)
    assert bins.edges == ((1.0, 1.0, 2.0, 4.0, 6.0),)
    codes = bins.codes(np.array([[0.5], [1], [1.5], [2], [4], [4.5], [6], [6.1]]))
    assert codes.ravel().tolist() == [0, 1, 2, 2, 3, 4, 4, 5]
    assert bins.sizes == (6,)


def test_a_feature_without_variation_has_one_bin():
    bins = Bins.of(("length",), np.full((5, 1), 3.0), 8)
    assert bins.edges == ((3.0, 3.0),)
    assert bins.codes(np.array([[2.0], [3.0], [4.0]])).ravel().tolist() == [0, 1, 2]


def test_effective_size():
    assert effective_size(np.ones(7)) == pytest.approx(7)
    assert effective_size(np.array([1.0, 0, 0])) == 1
    assert effective_size(np.array([3.0, 1.0])) == pytest.approx(16 / 10)
    assert effective_size(np.zeros(3)) == 0


def test_draws_are_seeded_sum_up_and_follow_the_weights():
    weights = np.random.default_rng(3).exponential(1, 200)
    counts = draw(weights, 90, 5)
    assert counts.sum() == 90
    assert (counts == draw(weights, 90, 5)).all()
    assert (counts != draw(weights, 90, 6)).any()
    expected = weights / weights.sum() * 90
    assert (np.abs(counts - expected) < 1).all()
    mean = np.mean([draw(weights, 90, seed) for seed in range(600)], axis=0)
    assert mean == pytest.approx(expected, abs=0.11)


def test_a_shift_is_taken_out_and_measured():
    validation, target = two_features(1, 800, 12, 0.4), two_features(2, 900, 9, 0.7)
    found = reweight(("length", "density"), validation, target)
    assert found.problem is None
    assert found.weights.mean() == pytest.approx(1)
    assert found.effective_sample_size == pytest.approx(found.weights.sum() ** 2 / (found.weights**2).sum())
    for name, before in found.marginal_before.items():
        assert before > 0.2 and found.marginal_after[name] <= found.uncovered_mass + 1e-6
    assert found.joint_after < found.joint_before / 2
    assert found.joint_before == pytest.approx(_joint_by_hand(validation, target, np.ones(800)))
    assert found.joint_after == pytest.approx(_joint_by_hand(validation, target, found.weights))


def _joint_by_hand(validation, target, weights):
    bins = Bins.of(("a", "b"), validation, 8)
    ours, theirs = {}, {}
    for code, weight in zip(map(tuple, bins.codes(validation)), weights, strict=True):
        ours[code] = ours.get(code, 0) + weight / weights.sum()
    for code in map(tuple, bins.codes(target)):
        theirs[code] = theirs.get(code, 0) + 1 / len(target)
    return sum(abs(ours.get(code, 0) - theirs.get(code, 0)) for code in {*ours, *theirs}) / 2


def test_without_a_shift_the_weights_stay_near_one():
    sample = two_features(4, 1000, 12, 0.4)
    found = reweight(("length", "density"), sample, sample)
    assert found.weights == pytest.approx(1)
    assert found.joint_after == pytest.approx(0)
    assert found.shift_p_value == 1


def test_a_difference_that_may_be_chance_leaves_the_weights_alone():
    """Two samples of one population: at a level of 1 % about one pair in a hundred is re-weighted."""
    touched = 0
    for seed in range(200):
        ours, theirs = two_features(seed, 400, 12, 0.4), two_features(seed + 1000, 500, 12, 0.4)
        found = reweight(("length", "density"), ours, theirs)
        assert (found.weights == 1).all() == (found.shift_p_value >= 0.01)
        touched += found.shift_p_value < 0.01
    assert touched <= 8
    small = reweight(
        ("length",), two_features(0, 3000, 12, 0.4)[:, :1], two_features(1, 3500, 11.5, 0.4)[:, :1]
    )
    assert small.shift_p_value < 0.01 and small.weights.std() > 0.05


def test_the_test_of_a_shift_is_pearsons():
    from scipy.stats import chisquare

    ours, theirs = np.repeat([1, 2, 3], [50, 30, 20]), np.repeat([1, 2, 3, 4], [35, 30, 34, 1])
    table = np.array([[50, 30, 20], [35, 30, 35]])
    expected = table.sum(axis=0) / 2
    statistic = ((table - expected) ** 2 / expected).sum()
    p = chisquare(table.ravel(), np.tile(expected, 2), ddof=3).pvalue
    assert chisquare(table.ravel(), np.tile(expected, 2)).statistic == pytest.approx(statistic)
    assert shift_p_value(ours[:, None], theirs[:, None], (5,)) == pytest.approx(p)
    assert shift_p_value(np.column_stack([ours, ours]), np.column_stack([theirs, ours]), (5, 5)) == (
        pytest.approx(2 * p)
    )


@pytest.mark.parametrize("method", ["raking", "classifier"])
def test_equal_arguments_give_equal_weights(method):
    validation, target = two_features(1, 300, 12, 0.4), two_features(2, 300, 11, 0.5)
    how = ReweightingSettings(method=method)
    runs = [reweight(("a", "b"), validation, target, settings=how, seed=3).weights for _ in range(2)]
    assert runs[0].tobytes() == runs[1].tobytes()


def test_the_classifier_finds_a_known_density_ratio():
    """Two normals of equal spread: the ratio is exp(x - 1/2)."""
    generator = np.random.default_rng(0)
    validation, target = generator.normal(0, 1, (3000, 1)), generator.normal(1, 1, (3000, 1))
    found = reweight(("x",), validation, target, settings=ReweightingSettings(method="classifier", cap=50))
    true = np.exp(validation[:, 0] - 0.5)
    middle = np.abs(validation[:, 0]) < 1.5
    # Within a bin, which holds an eighth of the texts, weights are equal: most of the difference is that.
    assert np.median(np.abs(np.log(found.weights[middle] / true[middle]))) < 0.2
    assert found.marginal_after["x"] < found.marginal_before["x"] / 3


def test_the_classifier_sees_what_marginals_hide():
    """Equal marginals, opposite correlation: raking can't know, the classifier corrects most of it."""
    generator = np.random.default_rng(1)

    def pairs(correlation, size):
        return generator.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], size)

    validation, target = pairs(0.0, 1500), pairs(0.7, 1500)
    raked = reweight(("a", "b"), validation, target)
    learned = reweight(("a", "b"), validation, target, settings=ReweightingSettings(method="classifier"))
    assert raked.joint_after > 0.25
    assert learned.joint_after < raked.joint_after * 0.75


def test_floors_give_a_reason_instead_of_weights_that_mislead():
    validation = two_features(1, 800, 12, 0.4)
    names = ("length", "density")
    far = reweight(names, validation, validation + np.array([200.0, 0.0]))
    assert far.uncovered_mass == 1 and "100.0% of the target lies where no validation text is" in far.problem
    rare = validation[(validation[:, 0] >= 18) & (validation[:, 1] > 1)]
    few = reweight(names, validation, np.resize(rare, (800, 2)))
    assert few.effective_sample_size < 50 and "the weights don't reach the target" in few.problem
    one_bin = reweight(("length",), validation[:, :1], np.full((800, 1), 17.0))
    assert one_bin.problem is None and one_bin.effective_sample_size > 50
    lowered = ReweightingSettings(min_effective=100)
    assert (
        "an effective sample size of"
        in reweight(("length",), validation[:, :1], np.full((800, 1), 17.0), settings=lowered).problem
    )
    short = reweight(names, validation, validation[:100])
    assert "the target holds 100 texts" in short.problem
    assert reweight(names, validation, validation[:100], size=100).problem is None
    nothing = reweight(names, validation, np.empty((0, 2)))
    assert nothing.problem == "the target holds no text"
    clustered = reweight(names, validation, validation, clusters=np.arange(800) // 40)
    assert "effective sample size of 20.0" in clustered.problem


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bins": 8.5}, "bins: a whole number"),
        ({"bins": "8"}, "bins: a whole number"),
        ({"cap": "10"}, "cap: a number above 1"),
        ({"max_distance": None}, "max_distance: a share from 0 to below 1"),
        ({"bins": 1}, "bins: a whole number from 2 on"),
        ({"cap": 1.0}, "cap: a number above 1"),
        ({"cap": math.nan}, "cap: a number above 1"),
        ({"min_effective": 0}, "min_effective: a number of texts from 1 on"),
        ({"max_uncovered": 1.0}, "max_uncovered: a share"),
        ({"method": "magic"}, "method: raking or classifier"),
    ],
)
def test_settings_that_make_no_sense_are_refused(fields, message):
    with pytest.raises(InputError, match=message):
        ReweightingSettings(**fields)


def test_total_variation():
    assert total_variation(np.array([0.5, 0.5]), np.array([1.0, 0.0])) == 0.5


def test_settings_out_of_range_are_refused_before_anything_is_computed():
    with pytest.raises(InputError, match="bins: at most 100 are possible"):
        ReweightingSettings(bins=10**9)
    validation = two_features(1, 100, 12, 0.4)
    for size in (0, -1, 1.5):
        with pytest.raises(InputError, match="size: a whole number from 1 on"):
            reweight(("length", "density"), validation, validation, size=size)
