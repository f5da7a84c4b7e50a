"""When a person takes over."""

import pytest

from evalkit.scenario.flow import HandoverCosts, HandoverPolicy
from sandbox.business.handover import HandoverRule, turn_failed
from sandbox.domain import IntentGuess

RULE = HandoverRule.from_policy(
    HandoverPolicy(
        intents=["contact_human", "complaint"],
        words={"en": ["lawyer", "chargeback fee"], "zh": ["人工"]},
        after_failed_turns=2,
        threshold=0.5,
        reply={"en": "A colleague comes.", "zh": "请稍等。"},
    )
)


def guess(label: str = "balance", out_of_scope: bool = False, **probabilities: float) -> IntentGuess:
    return IntentGuess(label, probabilities.get(label, 0.9), out_of_scope, probabilities)


@pytest.mark.parametrize(
    ("text", "decided"),
    [
        ("I call my Lawyer.", True),
        ("lawyers are expensive", False),
        ("the CHARGEBACK FEE is wrong", True),
        ("转人工服务", True),
        ("ＬＡＷＹＥＲ", True),
        ("hello", False),
    ],
)
def test_words(text: str, decided: bool) -> None:
    assert RULE.decide(text, None, 0).decided is decided


def test_intents_add_up() -> None:
    both = guess("balance", balance=0.4, contact_human=0.35, complaint=0.25)
    decision = RULE.decide("x", both, 0)
    assert (decision.decided, decision.reason, round(decision.score, 6)) == (
        True,
        "intent:contact_human",
        0.6,
    )
    decision = RULE.decide("x", guess("balance", balance=0.9, contact_human=0.1), 0)
    assert (decision.decided, decision.reason, round(decision.score, 6)) == (False, "", 0.1)


def test_failed_turns_in_a_row() -> None:
    assert not RULE.decide("x", None, 1).decided
    assert RULE.decide("x", None, 2).reason == "failed_turns:2"


def test_no_signal_is_no_handover_even_at_threshold_0() -> None:
    rule = HandoverRule.from_policy(HandoverPolicy(threshold=0.0, reply={"en": "x"}))
    assert not rule.decide("hello", None, 0).decided


def test_s39_the_user_is_always_told_something() -> None:
    assert RULE.reply("zh") == "请稍等。"
    english_only = HandoverRule.from_policy(HandoverPolicy(reply={"en": "A colleague comes."}))
    assert english_only.reply("zh") == "A colleague comes."
    with pytest.raises(ValueError, match="reply"):
        HandoverPolicy(reply={})


@pytest.mark.parametrize(
    ("intent", "last", "text", "empty", "failed"),
    [
        (guess("balance"), None, "what is my balance", False, False),
        (guess("balance", out_of_scope=True), None, "tell me a joke", False, True),
        (guess("balance"), "balance", "and now?", False, False),
        (guess("balance"), "balance", "No, my balance!", False, True),
        (guess("balance"), "balance", "that isn't my balance", False, True),
        (guess("balance"), "balance", "余额不对", False, True),
        (guess("balance"), "card_lost", "no, my balance", False, False),
        (guess("balance"), "balance", "nobody knows", False, False),
        (None, None, "hello", True, True),
        (None, None, "no", False, False),
    ],
)
def test_what_a_failed_turn_is(
    intent: IntentGuess | None, last: str | None, text: str, empty: bool, failed: bool
) -> None:
    assert turn_failed(intent, last, text, empty) is failed


def test_doubt_speaks_for_a_person_the_more_the_greater_it_is() -> None:
    policy = HandoverPolicy(confidence_below=0.6, threshold=0.5, reply={"en": "x"})
    rule = HandoverRule.from_policy(policy)
    sure, unsure, lost = (guess("balance", balance=share) for share in (0.7, 0.55, 0.2))
    assert [rule.decide("x", one, 0).decided for one in (sure, unsure, lost)] == [False, False, True]
    assert rule.decide("x", lost, 0).reason == "confidence:0.20"
    assert rule.decide("x", unsure, 0).score == pytest.approx(0.45)


def test_a_dear_miss_hands_over_sooner() -> None:
    doubtful = guess("balance", balance=0.7, contact_human=0.3)
    for missed, decided in ((1, False), (4, True)):
        costs = HandoverCosts(needless=1, missed=missed)
        rule = HandoverRule.from_policy(
            HandoverPolicy(intents=["contact_human"], costs=costs, reply={"en": "x"})
        )
        assert rule.decide("x", doubtful, 0).decided is decided
