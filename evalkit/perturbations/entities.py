"""Swapped entities: the text reads as well as before, and says something else."""

from collections.abc import Iterable, Sequence
from random import Random

from evalkit.metrics.glossary import Glossary
from evalkit.metrics.words import has_cjk
from evalkit.perturbations.dates import find_dates
from evalkit.perturbations.numbers import FoundNumber, find_numbers, replaced


def amounts_of(texts: Iterable[str]) -> tuple[str, ...]:
    """The amounts of texts as written, sorted, each once: the order of the texts doesn't matter."""
    return tuple(sorted({number.text for text in texts for number in find_numbers(text) if number.amount}))


def swap_numbers(text: str, random: Random) -> str:
    """`text` with its different numbers in each other's places, dates left out; left alone where it has no two."""
    found = _outside_dates(text)
    distinct = list(dict.fromkeys(number.text for number in found))
    if len(distinct) < 2:
        return text
    shift = random.randrange(1, len(distinct))
    other = {number: distinct[(index + shift) % len(distinct)] for index, number in enumerate(distinct)}
    return replaced(text, [(number.start, number.end, other[number.text]) for number in found])


def _outside_dates(text: str) -> list[FoundNumber]:
    dates = find_dates(text)
    return [
        number
        for number in find_numbers(text)
        if not any(start < number.end and number.start < end for start, end, _ in dates)
    ]


def swap_amounts(text: str, random: Random, pool: Sequence[str]) -> str:
    """`text` with each amount replaced by another text's; `pool` are the amounts of all texts, sorted."""
    pieces = []
    for number in find_numbers(text):
        others = [amount for amount in pool if amount != number.text]
        if number.amount and others:
            pieces.append((number.start, number.end, random.choice(others)))
    return replaced(text, pieces)


def swap_terms(text: str, random: Random, glossary: Glossary, terms: Sequence[str]) -> str:
    """`text` with each glossary term replaced by another one of the same script."""
    pieces = []
    for start, end in glossary.spans(text):
        term = text[start:end]
        others = [
            other for other in terms if other.lower() != term.lower() and has_cjk(other) == has_cjk(term)
        ]
        if others:
            pieces.append((start, end, random.choice(others)))
    return replaced(text, pieces)
