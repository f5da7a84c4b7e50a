"""Numbers, scales and marked texts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalkit.report import numbers
from evalkit.report.charts import Dot, Mark, Scale, Strip, axis
from evalkit.report.language import ENGLISH
from evalkit.report.text import highlight, visible
from tests.evalkit.fake_run import interval


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (3.9312, "ratio", "3.931"),
        (41.2, "ratio", "41.2"),
        (123.456, "ratio", "123.5"),
        (0.0, "nats", "0"),
        (-0.25, "nats", "−0.25"),
        (0.957, "share", "95.7 %"),
        (0.9942, "share", "99.42 %"),
        (0.0641, "share", "6.41 %"),
        (1.0, "share", "100 %"),
        (0.0, "share", "0 %"),
        (15.0, "ms", "15 ms"),
        (4.1049, "ms", "4.105 ms"),
        (1e12, None, "1e+12"),
        (None, "ratio", "–"),
        (math.nan, "ratio", "–"),
        (math.inf, "ms", "–"),
    ],
)
def test_numbers(value: float | None, unit: str | None, shown: str) -> None:
    assert numbers.number(value, unit) == shown


@pytest.mark.parametrize(
    ("value", "relative", "unit", "shown"),
    [
        (-0.031, True, "ratio", "−3.1 %"),
        (0.02, True, "ratio", "+2 %"),
        (-0.11, False, "share", "−11 pp"),
        (0.5, False, "ms", "+0.5 ms"),
        (0.0, True, "ratio", "0 %"),
        (None, True, "ratio", "–"),
    ],
)
def test_changes(value: float | None, relative: bool, unit: str, shown: str) -> None:
    assert numbers.change(value, relative=relative, unit=unit) == shown


def test_intervals_with_a_missing_end() -> None:
    assert numbers.interval(interval(1.0, None), "ratio") == "1 … –"
    assert numbers.interval(None, "ratio") == "–"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_can_be_shown(value: float) -> None:
    for unit in ("ratio", "share", "ms", None):
        assert numbers.number(value, unit)
        assert numbers.change(value, relative=False, unit=unit)


finite = st.floats(min_value=-1e12, max_value=1e12)


@given(st.lists(st.none() | finite | st.just(math.nan), max_size=8), st.booleans())
def test_scales_hold_every_value_and_have_few_ticks(values: list[float | None], linear: bool) -> None:
    scale = Scale.over(values, linear=linear)
    for value in values:
        if value is not None and math.isfinite(value):
            assert 0 <= scale.position(value) <= 100
    ticks = scale.ticks()
    assert len(ticks) <= 7
    assert ticks == sorted(ticks)


def test_a_logarithmic_scale_from_a_factor_of_ten() -> None:
    assert Scale.over([2.0, 120.0]).logarithmic
    assert Scale.over([2.0, 120.0]).ticks() == [2.0, 10.0, 20.0, 100.0]
    assert not Scale.over([2.0, 12.0]).logarithmic
    assert not Scale.over([-1.0, 120.0]).logarithmic


def test_a_strip_leaves_out_what_is_not_finite() -> None:
    scale = Scale.over([0.0, 1.0])
    drawn = Strip(
        scale, [Dot(math.nan, 0, 1), Dot(0.5, None, math.inf)], [Mark(math.inf, "tick", "x")], "<said>"
    ).svg(ENGLISH)
    assert drawn.count("<circle") == 1
    assert "nan" not in drawn and "inf" not in drawn
    assert 'aria-label="&lt;said&gt;"' in drawn
    assert "&lt;b&gt;" in axis(scale, [(0.5, "<b>")])


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        ("plain", "plain"),
        ("你好\n\tworld", "你好\n\tworld"),
        ("a\u202eb", "a⟨U+202E⟩b"),
        ("a\x00b\x1b", "a⟨U+0000⟩b⟨U+001B⟩"),
        ("a\u200bb", "a⟨U+200B⟩b"),
        ("\ud800", "⟨U+D800⟩"),
        ("👩\u200d💻", "👩\u200d💻"),
    ],
)
def test_visible(given_text: str, shown: str) -> None:
    assert visible(given_text) == shown


def test_highlight_marks_tokens_by_surprise() -> None:
    segments = highlight("one two three", [(4, 7, -7.0), (0, 3, -2.5), (8, 13, -0.5)])
    assert [(segment.text, segment.level) for segment in segments] == [
        ("one", 1),
        (" ", 0),
        ("two", 3),
        (" ", 0),
        ("three", 0),
    ]
    assert segments[2].note == "ln p = -7.00"


def test_highlight_widens_to_whole_characters() -> None:
    # 透 is three bytes; a byte-level token may hold its middle one only.
    segments = highlight("a透b", [(2, 3, -9.0)])
    assert [(segment.text, segment.level) for segment in segments] == [("a", 0), ("透", 3), ("b", 0)]


def test_of_overlapping_spans_the_more_surprising_is_kept() -> None:
    segments = highlight("abcdef", [(0, 4, -3.0), (2, 6, -8.0)])
    assert [(segment.text, segment.level) for segment in segments] == [("ab", 0), ("cdef", 3)]


@given(
    st.text(max_size=30), st.lists(st.tuples(st.integers(-5, 99), st.integers(-5, 99), finite), max_size=6)
)
def test_highlighting_never_loses_text(text: str, worst: list[tuple[int, int, float]]) -> None:
    segments = highlight(text, worst)
    assert "".join(segment.text for segment in segments) == text
