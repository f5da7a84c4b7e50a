"""Windows: each token scored exactly once, with the longest left context that fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalkit.errors import InputError
from evalkit.scenario.schema import Window as Policy
from evalkit.scoring.windows import Window, plan_windows, resolve_window

PREFIXES = st.sampled_from(["first", "every", "none"])


def windows(tokens: int, length: int, stride: int, prefix: str, has_prefix: bool = True) -> list[Window]:
    return list(
        plan_windows(tokens, Policy(length=length, stride=stride, prefix=prefix), has_prefix=has_prefix)
    )


@given(st.integers(0, 300), st.integers(2, 60), st.data(), PREFIXES, st.booleans())
def test_each_token_is_scored_exactly_once(tokens, length, data, prefix, has_prefix):
    stride = data.draw(st.integers(1, length))
    planned = windows(tokens, length, stride, prefix, has_prefix)
    scored = [token for window in planned for token in range(window.first_scored, window.end)]
    unconditioned = 0 if has_prefix and prefix != "none" else 1
    assert scored == list(range(min(unconditioned, tokens), tokens))


@given(st.integers(1, 300), st.integers(2, 60), st.data(), PREFIXES, st.booleans())
def test_each_window_fits_and_sees_the_longest_context_that_does(tokens, length, data, prefix, has_prefix):
    stride = data.draw(st.integers(1, length))
    planned = windows(tokens, length, stride, prefix, has_prefix)
    for number, window in enumerate(planned):
        assert 1 <= window.scored <= window.inputs <= length
        # Nothing more could be seen: the window is full, or it begins with the text.
        assert window.inputs == length or window.start == 0
        if number:
            assert window.start <= window.first_scored - 1
            assert window.scored <= stride
        assert window.prefix == (has_prefix and (prefix == "every" or (prefix == "first" and number == 0)))


def rolling_windows_of_lm_eval(tokens: int, length: int) -> list[tuple[list[int], list[int]]]:
    """Inputs and targets as lm-evaluation-harness documents them for context_len 1; -1 is the prefix token."""
    sequence = list(range(tokens))
    result = []
    first = min(length, tokens)
    result.append(([-1, *sequence[: first - 1]], sequence[:first]))
    predicted = first
    while predicted < tokens:
        size = min(tokens - predicted, length)
        end = predicted + size
        result.append((sequence[max(0, end - length - 1) : end - 1], sequence[end - size : end]))
        predicted += size
    return result


@pytest.mark.parametrize("tokens", [1, 2, 7, 8, 9, 15, 16, 17, 23, 24, 25, 40])
def test_full_stride_first_is_the_rolling_window_of_lm_eval(tokens):
    ours = [
        (
            [-1] * window.prefix + list(range(window.start, window.end - 1)),
            list(range(window.first_scored, window.end)),
        )
        for window in windows(tokens, 8, 8, "first")
    ]
    assert ours == rolling_windows_of_lm_eval(tokens, 8)


def test_worked_example():
    assert windows(12, 8, 3, "first") == [
        Window(start=0, first_scored=0, end=8, prefix=True),
        Window(start=2, first_scored=8, end=11, prefix=False),
        Window(start=3, first_scored=11, end=12, prefix=False),
    ]
    # A repeated prefix takes one place: seven tokens of the text are fed, and at most seven are scored.
    assert windows(12, 8, 8, "every") == [
        Window(start=0, first_scored=0, end=8, prefix=True),
        Window(start=4, first_scored=8, end=12, prefix=True),
    ]


def test_default_window_is_the_models_length():
    assert resolve_window(None, 256) == Policy(length=256, stride=256, prefix="first")


def test_length_above_the_model_is_refused():
    with pytest.raises(InputError, match=r"window\.length: 300 is above the model's max_length 256"):
        resolve_window(Policy(length=300, stride=300), 256)
