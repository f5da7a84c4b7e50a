"""Domain terms: a strict glossary file, and finding its terms in text."""

from collections.abc import Sequence
from pathlib import Path

from evalkit.errors import InputError
from evalkit.files import read_text
from evalkit.metrics.words import has_cjk


def read_glossary(path: Path) -> tuple[str, ...]:
    """Terms of a glossary file, one a line, in the file's order; blank lines and repeats are passed over.

    Raises:
        InputError: missing, binary, or without a single term.
    """
    text = read_text(path)
    if "\0" in text:
        raise InputError(f"{path}: a binary file; a text file with one term a line is needed")
    terms = tuple(dict.fromkeys(" ".join(line.split()) for line in text.splitlines() if line.strip()))
    if not terms:
        raise InputError(f"{path}:1: the glossary is empty; write one term a line")
    return terms


class Glossary:
    """Finds terms: longest match from the left, upper and lower case alike.

    A term that begins or ends with a letter or digit of a spaced script must stand free there (`card` isn't
    in `cardinal`); Chinese and Japanese have no such boundary.
    """

    def __init__(self, terms: Sequence[str]) -> None:
        """Build the automaton (Aho-Corasick) over the terms."""
        from ahocorasick_rs import AhoCorasick

        self._terms = list(dict.fromkeys(_fold(term) for term in terms))
        self._automaton = AhoCorasick(self._terms)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Character spans [start, end) of the terms in `text`, from left to right, never overlapping."""
        folded = _fold(text)
        found = self._automaton.find_matches_as_indexes(folded, overlapping=True)
        free = [(start, end) for _, start, end in found if _stands_free(folded, start, end)]
        # Leftmost first, the longest of those that start together.
        free.sort(key=lambda span: (span[0], -span[1]))
        chosen: list[tuple[int, int]] = []
        reached = 0
        for start, end in free:
            if start >= reached:
                chosen.append((start, end))
                reached = end
        return chosen


def _fold(text: str) -> str:
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    # A few characters grow when lowered (Turkish dotted I); they stay, so that positions hold.
    return "".join(low if len(low := character.lower()) == 1 else character for character in text)


def _stands_free(text: str, start: int, end: int) -> bool:
    joined_left = start > 0 and _is_spaced(text[start - 1]) and _is_spaced(text[start])
    joined_right = end < len(text) and _is_spaced(text[end - 1]) and _is_spaced(text[end])
    return not (joined_left or joined_right)


def _is_spaced(character: str) -> bool:
    return character.isalnum() and not has_cjk(character)
