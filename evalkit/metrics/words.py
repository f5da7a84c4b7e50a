"""What a word is, for everyone: for word perplexity, for out-of-vocabulary, and for counting training words.

A word is a maximal run of characters that are no white space. Chinese and Japanese are written without
spaces: a run that holds such characters isn't a word. Where the scenario declares a segmenter, its segments are; else a
text with such a run has no word count.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

_WORD = re.compile(r"\S+")
# Han with its extensions and compatibility forms, kana, bopomofo.
_CJK = re.compile(
    "[\u3005-\u3007\u3040-\u30ff\u3100-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
_KANA = re.compile("[\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fd-\u30ff\u31f0-\u31ff]")
# A lexicon entry within a run: one CJK character, or a stretch of anything else.
_ENTRY = re.compile(f"{_CJK.pattern}|(?:(?!{_CJK.pattern}).)+", re.DOTALL)


def has_cjk(text: str) -> bool:
    """Whether the text holds a character of a script that is written without spaces."""
    return not text.isascii() and _CJK.search(text) is not None


@dataclass(frozen=True)
class WordRule:
    """How words are counted.

    Attributes:
        name: stands in the signature of numbers per word.
        segments: words and punctuation of a run with Chinese characters, in order; None: nothing segments it.
    """

    name: str = "whitespace"
    segments: Callable[[str], Iterable[str]] | None = None

    def count(self, text: str) -> int:
        """Words of a text; 0 for one that has no word count: CJK without a segmenter, and Japanese with one.

        As between spaces, punctuation makes no word of its own beside other segments.
        """
        if not has_cjk(text):
            return len(text.split())
        if self.segments is None or _KANA.search(text):
            return 0
        return sum(1 if not has_cjk(run) else self._in_run(run) for run in text.split())

    def _in_run(self, run: str) -> int:
        segments = () if self.segments is None else self.segments(run)
        return max(1, sum(not all(map(_is_mark, segment)) for segment in segments))


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
