"""Near duplicates, against the exact Jaccard similarity."""

import random

import pytest

from trainer.data.duplicates import NearDuplicates

WORDS = [f"word{number}" for number in range(400)]
HAN = [chr(0x4E00 + number) for number in range(400)]


def shingles(text: str) -> set[str]:
    plain = " ".join(text.casefold().split())
    return {plain[start : start + 5] for start in range(max(1, len(plain) - 4))}


def jaccard(one: str, two: str) -> float:
    a, b = shingles(one), shingles(two)
    return len(a & b) / len(a | b)


def texts(kind: str, count: int) -> list[str]:
    """Pairs of a text and a copy with some places changed."""
    source = random.Random(5)
    alphabet, glue, size = (WORDS, " ", 60) if kind == "en" else (HAN, "", 300)
    made = []
    for number in range(count):
        units = [source.choice(alphabet) for _ in range(size)]
        copy = list(units)
        for _ in range(number % 30):
            copy[source.randrange(size)] = source.choice(alphabet)
        made += [glue.join(units), glue.join(copy)]
    return made


@pytest.mark.parametrize("kind", ["en", "zh"])
def test_the_estimate_agrees_with_the_exact_similarity(kind):
    threshold = 0.8
    wrong = sure = 0
    found = {True: 0, False: 0}
    every = texts(kind, 90)
    for one, two in zip(every[::2], every[1::2], strict=True):
        index = NearDuplicates(threshold)
        assert not index.met(one)
        near, exact = index.met(two), jaccard(one, two)
        found[near] += 1
        # Three standard errors of 128 permutations.
        if abs(exact - threshold) > 0.11:
            sure += 1
            wrong += near != (exact > threshold)
    assert wrong <= 0.02 * sure and sure > 40 and min(found.values()) > 15


def test_case_and_white_space_do_not_count_and_short_texts_work():
    index = NearDuplicates(0.8)
    assert [
        index.met(text) for text in ("Hello  World, again", "hello world,\nAGAIN", "hi", "HI", "ho", "")
    ] == [
        False,
        True,
        False,
        True,
        False,
        False,
    ]


def test_a_near_duplicate_is_one_of_a_text_that_is_none_itself():
    """Otherwise a chain of small changes would take everything along."""
    source = random.Random(1)
    units = [source.choice(WORDS) for _ in range(100)]
    index, met = NearDuplicates(0.8), []
    for _ in range(40):
        met.append(index.met(" ".join(units)))
        for _ in range(2):
            units[source.randrange(100)] = source.choice(WORDS)
    assert met.count(False) > 3


def test_equal_runs_give_equal_results():
    every = texts("en", 60)
    assert len({tuple(map(NearDuplicates(0.8).met, every)) for _ in range(2)}) == 1


def test_a_long_text_is_sketched_in_blocks():
    source = random.Random(2)
    text = "".join(chr(source.randrange(0x4E00, 0x9FA5)) for _ in range(60_000))
    index = NearDuplicates(0.8)
    assert not index.met(text) and index.met(text[:-500])
