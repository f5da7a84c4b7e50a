"""E14: a BOS token that the model needs is missing; perplexity explodes and nobody says why (lm-eval PR 1465, 1586)."""

from evalkit.metrics.surprise import surprise_details
from tests.evalkit.metrics.samples import text_record


def text(index, first_logprob, *, start=0, unscored=0):
    """A text of 40 bytes whose first scored token begins after `unscored` bytes."""
    return text_record(
        f"t{index:02}",
        nll=20.0 + index / 50,
        bytes_scored=40 - unscored,
        worst=[(start, start + 4, first_logprob), (20, 24, -3.0)],
    )


def test_e14_extreme_first_tokens_give_a_warning():
    found = surprise_details([text(index, -22.5) for index in range(20)])
    assert found["first_token"] == {"texts": 20, "extreme": 20, "above_nats": 12.0}
    assert "may need a BOS token" in found["warning"]


def test_e14_the_first_scored_token_counts_where_the_first_one_is_unconditioned():
    found = surprise_details([text(index, -22.5, start=6, unscored=6) for index in range(20)])
    assert found["first_token"]["extreme"] == 20


def test_e14_hard_tokens_elsewhere_or_in_few_texts_are_no_missing_bos():
    later = surprise_details([text(index, -22.5, start=8) for index in range(20)])
    assert later["first_token"]["extreme"] == 0 and "warning" not in later
    few = surprise_details([text(index, -22.5 if index < 5 else -9.0) for index in range(20)])
    assert few["first_token"]["extreme"] == 5 and "warning" not in few
