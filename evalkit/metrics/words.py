"""What a word is, for everyone: for word perplexity, for out-of-vocabulary, and for counting training words.

A word is a maximal run of characters that are no white space. Chinese and Japanese are written without
spaces: a text that holds such characters has no word count (a run of it isn't a word).
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

_WORD = re.compile(r"\S+")
# Han with its extensions and compatibility forms, kana, bopomofo.
_CJK = re.compile(
    "[\u3005-\u3007\u3040-\u30ff\u3100-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
# A lexicon entry within a run: one CJK character, or a stretch of anything else.
_ENTRY = re.compile(f"{_CJK.pattern}|(?:(?!{_CJK.pattern}).)+", re.DOTALL)


def has_cjk(text: str) -> bool:
    """Whether the text holds a character of a script that is written without spaces."""
    return not text.isascii() and _CJK.search(text) is not None


def count_words(text: str) -> int:
    """Words of a text; 0 for a text with CJK characters, which has no word count."""
    return 0 if has_cjk(text) else len(text.split())


def lexicon_entries(text: str) -> Iterator[tuple[str, int, int]]:
    """The units that are looked up in a lexicon, each with its character span.

    A word counts without the punctuation around it and in lower case; within a run, each CJK character is a
    unit of its own. What is only punctuation isn't a unit.

    Yields:
        (entry, start, end): the looked-up form, and the characters [start, end) it stands for.
    """
    plain = text.isascii()
    for run in _WORD.finditer(text):
        if plain or not _CJK.search(run[0]):
            entry = _bare(run[0])
            if entry:
                yield entry, run.start(), run.end()
            continue
        for part in _ENTRY.finditer(run[0]):
            entry = _bare(part[0])
            if entry:
                yield entry, run.start() + part.start(), run.start() + part.end()


@lru_cache(maxsize=1 << 16)
def _bare(run: str) -> str:
    start, end = 0, len(run)
    while start < end and _is_mark(run[start]):
        start += 1
    while end > start and _is_mark(run[end - 1]):
        end -= 1
    return run[start:end].lower()


def _is_mark(character: str) -> bool:
    return not character.isalnum() and unicodedata.category(character)[0] in "PSCZ"
