"""Which of the two languages a text is in, and its sentences."""

import re

_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_END = re.compile(r"[.!?]+[\"'”’)\]]*(?=\s)\s+|[。！？；]+[”’」』）]*\s*|\n+")
# A full stop behind these ends no sentence.
_ABBREVIATION = re.compile(r"(?:^|[\s(])(?:Mr|Mrs|Ms|Dr|St|No|vs|approx|e\.g|i\.e|cf|[A-Z])\.\s+$")


def is_chinese(text: str) -> bool:
    """Whether at least a third of the letters are Chinese characters."""
    letters = sum(character.isalpha() for character in text)
    return letters > 0 and 3 * len(_HAN.findall(text)) >= letters


def sentences(text: str) -> list[str]:
    """The sentences of a text with the white space behind them; joined they are the text again."""
    parts: list[str] = []
    begin = 0
    for match in _END.finditer(text):
        if _ABBREVIATION.search(text, begin, match.end()):
            continue
        parts.append(text[begin : match.end()])
        begin = match.end()
    if begin < len(text):
        parts.append(text[begin:])
    return parts
