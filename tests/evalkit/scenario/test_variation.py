"""Variation between trials: seeded, stable across processes, and never inside facts."""

import re
import subprocess
import sys
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from evalkit.scenario.variation import different_trials, mistype, trial_seed, user_texts, varies
from tests.support.dialogues import RECALL, dialogue

LONG = "Hello, I would like to know whether {name} may send {amount} euros tomorrow, please tell me. " * 3


def test_trial_0_is_the_dialogue_as_written() -> None:
    talk = dialogue(RECALL)
    plain = ["Hello, I am Maria.", "Please send 250 euros.", "Who am I and what do I send?"]
    assert user_texts(talk, 5, 0, ("paraphrase", "typos")) == plain
    assert user_texts(talk, 5, 3, ()) == plain


def test_the_same_trial_says_the_same_and_trials_differ() -> None:
    turns = [{"user": LONG, "gold": "x"}]
    talk = dialogue(RECALL, turns=turns)
    texts = [user_texts(talk, 5, trial, ("typos",))[0] for trial in range(6)]
    assert len(set(texts)) == 6
    assert texts == [user_texts(talk, 5, trial, ("typos",))[0] for trial in range(6)]
    assert user_texts(talk, 6, 1, ("typos",))[0] != texts[1]


def test_every_paraphrase_is_said_before_one_comes_again() -> None:
    talk = dialogue(RECALL, turns=[{"user": list("abcde"), "gold": "x"}, {"user": list("pq"), "gold": "x"}])
    said = [user_texts(talk, 1, trial, ("paraphrase",)) for trial in range(6)]
    assert said[0] == ["a", "p"]
    assert sorted(texts[0] for texts in said[:5]) == list("abcde") and said[5][0] == "a"
    assert [texts[1] for texts in said] == ["p", "q"] * 3
    orders = {
        tuple(user_texts(talk, seed, trial, ("paraphrase",))[0] for trial in range(5)) for seed in range(9)
    }
    assert len(orders) > 3


def test_a_seed_is_the_same_in_another_process() -> None:
    code = "from evalkit.scenario.variation import trial_seed; print(trial_seed(2024, '银行_1', 3))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(other.stdout) == trial_seed(2024, "银行_1", 3)


@given(st.integers(0, 2**32), st.floats(0.0, 1.0))
def test_typing_errors_leave_facts_digits_and_punctuation_alone(seed: int, rate: float) -> None:
    mistyped = mistype(LONG, Random(seed), rate)
    assert re.findall(r"\{\w+\}", mistyped) == re.findall(r"\{\w+\}", LONG)
    assert re.sub(r"\{\w+\}|[^\W\d_]", "", mistyped) == re.sub(r"\{\w+\}|[^\W\d_]", "", LONG)


def test_typing_errors_come_at_about_their_rate() -> None:
    letters = "abcdefghij" * 1000
    doubled_or_dropped = abs(len(mistype(letters, Random(1), 0.3)) - len(letters))
    assert mistype(letters, Random(1), 0.0) == letters
    assert doubled_or_dropped < 300
    changed = sum(a != b for a, b in zip(mistype(letters, Random(1), 0.02), letters, strict=False))
    assert changed > 0


def test_characters_of_chinese_are_only_swapped_and_nothing_becomes_empty() -> None:
    text = "我的银行卡丢失了请帮我冻结"
    assert sorted(mistype(text, Random(3), 1.0)) == sorted(text)
    assert mistype("a", Random(0), 1.0).strip()


def test_paraphrases_that_come_again_make_copies() -> None:
    turns = [
        {"user": ["a", "b"], "gold": "x"},
        {"user": ["c", "d", "e"], "gold": "x"},
        {"user": "f", "gold": "x"},
    ]
    talk = dialogue(RECALL, turns=turns)
    for trials in (1, 4, 9):
        said = [tuple(user_texts(talk, 7, trial, ("paraphrase",))) for trial in range(trials)]
        number = different_trials(talk, ("paraphrase",), 0.0, trials)
        assert number == len(set(said)) == min(trials, 6)
        assert all(said[trial] == said[trial % number] for trial in range(trials))
    assert different_trials(talk, ("paraphrase",), 0.5, 9) == 9
    assert different_trials(talk, ("paraphrase", "typos"), 0.0, 9) == 9
    assert different_trials(talk, (), 0.0, 9) == 1
    digressing = {"kind": "rules", "digresses": {"texts": ["hm"]}}
    assert different_trials(dialogue(RECALL, turns=turns, user=digressing), ("paraphrase",), 0.0, 9) == 9


def test_trials_without_a_source_of_variation_are_recognised() -> None:
    talk = dialogue(RECALL)
    plain = dialogue(RECALL, turns=[{"user": "{name} 12!", "gold": "x"}])
    assert varies(talk, ("paraphrase",), 0.0)
    assert not varies(talk, (), 0.0)
    assert varies(talk, (), 0.8)
    assert not varies(plain, ("paraphrase", "typos"), 0.0)
    assert varies(dialogue(RECALL, turns=[{"user": "Hi", "gold": "x"}]), ("typos",), 0.0)
