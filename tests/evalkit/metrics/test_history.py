"""From offline scores to online figures: fits, prediction intervals, and no word outside the history."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.isotonic import IsotonicRegression

from evalkit.errors import InputError
from evalkit.metrics.context import History
from evalkit.metrics.history import Calibration, rank_correlation, read_history


def history(count, seed=0, noise=0.2, slope=-3.0):
    generator = np.random.default_rng(seed)
    offline = generator.uniform(0.6, 0.95, count)
    online = 7 + slope * offline + generator.normal(0, noise, count)
    return History(tuple(zip(offline.tolist(), online.tolist(), strict=True)), "history.csv", "0" * 64)


def write(tmp_path, text):
    path = tmp_path / "history.csv"
    path.write_text(text)
    return path


def test_linear_equals_the_textbook():
    """scipy's regression for the line, statsmodels' formula (Draper & Smith 3.1) for the interval."""
    rows = history(12)
    fitted = Calibration(rows, "linear", rising=False)
    x, y = np.array(rows.rows).T
    line = stats.linregress(x, y)
    for at in (x.min(), 0.8, x.max()):
        assert fitted.predict(at) == pytest.approx(line.intercept + line.slope * at, rel=1e-12)
        residual = np.sqrt(((y - line.intercept - line.slope * x) ** 2).sum() / 10)
        error = residual * np.sqrt(1 + 1 / 12 + (at - x.mean()) ** 2 / ((x - x.mean()) ** 2).sum())
        assert fitted.half_width(at, 0.95, 2) == pytest.approx(stats.t.ppf(0.975, 10) * error, rel=1e-12)
        assert fitted.half_width(at, 0.95, 1) == pytest.approx(stats.t.ppf(0.95, 10) * error, rel=1e-12)


def test_isotonic_equals_scikit_learn():
    rows = history(20)
    fitted = Calibration(rows, "isotonic", rising=False)
    x, y = np.array(rows.rows).T
    reference = IsotonicRegression(increasing=False).fit(x, y)
    grid = np.linspace(x.min(), x.max(), 50)
    assert [fitted.predict(at) for at in grid] == pytest.approx(list(reference.predict(grid)), rel=1e-12)


@pytest.mark.parametrize("fit", ["linear", "isotonic"])
@pytest.mark.parametrize("count", [10, 30])
def test_prediction_intervals_cover_the_next_release(fit, count):
    generator = np.random.default_rng(5)
    hits, tries = 0, 300
    for seed in range(tries):
        rows = history(count, seed)
        fitted = Calibration(rows, fit, rising=False)
        at = generator.uniform(*fitted.range)
        seen = 7 - 3 * at + generator.normal(0, 0.2)
        hits += abs(seen - fitted.predict(at)) <= fitted.half_width(at, 0.95, 2)
    # Three standard errors below 95 %.
    assert hits / tries >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / tries)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(-10, 10)), min_size=10, max_size=25),
    st.sampled_from(["linear", "isotonic"]),
    st.floats(-1e6, 1e6),
)
def test_never_a_word_outside_the_history(rows, fit, at):
    if len({round(offline, 6) for offline, _ in rows}) < 3:
        return
    fitted = Calibration(History(tuple(rows), "h", "0"), fit, rising=True)
    low, high = min(offline for offline, _ in rows), max(offline for offline, _ in rows)
    assert fitted.covers(at) == (low <= at <= high)
    if fitted.covers(at):
        assert np.isfinite(fitted.predict(at)) and fitted.half_width(at, 0.95, 2) >= 0
        return
    for ask in (fitted.predict, lambda x: fitted.half_width(x, 0.95, 2)):
        with pytest.raises(ValueError, match="outside the calibration history"):
            ask(at)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 99), st.booleans())
def test_isotonic_never_turns(seed, rising):
    fitted = Calibration(history(15, seed), "isotonic", rising=rising)
    figures = [fitted.predict(at) for at in np.linspace(*fitted.range, 40)]
    steps = np.diff(figures) * (1 if rising else -1)
    assert (steps >= -1e-12).all()


def test_rank_correlation_has_the_sign_of_the_slope():
    assert rank_correlation(history(20, slope=-5)) < 0 < rank_correlation(history(20, slope=5))
    flat = History(tuple((index / 10, 1.0) for index in range(10)), "h", "0")
    assert rank_correlation(flat) == 0.0


def test_a_history_is_read_in_any_column_order(tmp_path):
    text = "release,online,offline\n" + "".join(f'"r,{i}",{5 - i / 10},{0.5 + i / 20}\n' for i in range(6))
    found = read_history(write(tmp_path, text), "linear")
    assert found.rows[1] == (0.55, 4.9)
    assert found.data == "history.csv" and len(found.sha256) == 64


GOOD = "offline,online\n" + "".join(f"{0.5 + i / 20},{5 - i / 10}\n" for i in range(6))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"history\.csv:1: the file is empty"),
        ("score,online\n1,2\n", r"history\.csv:1: no column 'offline'"),
        ("offline,online,online\n", r"history\.csv:1: column 'online' is unknown or repeated"),
        ("offline,online,note\n", r"history\.csv:1: column 'note' is unknown"),
        (GOOD + "0.9\n", r"history\.csv:8: 1 fields, the header has 2"),
        (GOOD + "0.9,many\n", r"history\.csv:8: online: a finite number is needed \(got 'many'\)"),
        (GOOD + "nan,3\n", r"history\.csv:8: offline: a finite number"),
        (GOOD + '"0.9,3\n', r"history\.csv:\d+: broken CSV"),
        ("offline,online\n0.5,1\n", r"1 releases; the linear fit needs at least 5"),
        ("offline,online\n" + "0.5,1\n" * 6, "fewer than 3 different scores"),
        ("offline\0", "a binary file"),
    ],
)
def test_broken_histories_are_named_by_line(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_history(write(tmp_path, text), "linear")
