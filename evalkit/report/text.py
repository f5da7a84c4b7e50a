"""Texts from data made safe to look at: what can't be seen is shown, what could deceive is named."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

# Surprise of a token in nats from which it is marked, strongest first: p below 0.1 %, 1 %, 10 %.
_LEVELS = ((6.9, 3), (4.6, 2), (2.3, 1))


@dataclass(frozen=True)
class Segment:
    """A piece of a text; level 0 is unmarked, 3 the most surprising; note says how probable it was."""

    text: str
    level: int = 0
    note: str = ""


def visible(text: str) -> str:
    """`text` with control, bidirectional-override and unpaired surrogate characters written as ⟨U+XXXX⟩.

    New lines and tabs stay; they can't reorder or hide anything.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(char) for char in text)


def highlight(text: str, worst: Sequence[tuple[int, int, float]]) -> list[Segment]:
    """Cut a text into segments with its most surprising tokens marked.

    Args:
        text: the source text.
        worst: [start_byte, end_byte, logprob] in the UTF-8 bytes of `text`, in any order. A span that cuts
            through a character is widened to it; of overlapping spans the more surprising one is kept.
    """
    data = text.encode("utf-8", "surrogatepass")
    taken: list[tuple[int, int, float]] = []
    for start, end, logprob in sorted(worst, key=lambda span: span[2]):
        start, end = _whole_characters(data, start, end)
        overlaps = any(start < other_end and other_start < end for other_start, other_end, _ in taken)
        if start < end and not overlaps:
            taken.append((start, end, logprob))
    segments: list[Segment] = []
    at = 0
    for start, end, logprob in sorted(taken):
        segments.append(Segment(_decode(data[at:start])))
        segments.append(Segment(_decode(data[start:end]), _level(logprob), f"ln p = {logprob:.2f}"))
        at = end
    segments.append(Segment(_decode(data[at:])))
    return [segment for segment in segments if segment.text]


def _whole_characters(data: bytes, start: int, end: int) -> tuple[int, int]:
    start, end = max(0, min(start, len(data))), max(0, min(end, len(data)))
    while start > 0 and start < len(data) and data[start] & 0xC0 == 0x80:
        start -= 1
    while end < len(data) and data[end] & 0xC0 == 0x80:
        end += 1
    return start, end


def _level(logprob: float) -> int:
    return next((level for surprise, level in _LEVELS if -logprob >= surprise), 0)


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _shown(char: str) -> str:
    if char in "\n\t":
        return char
    # Cc control, Cf format (bidirectional overrides, zero-width), Cs surrogate, Co private, Cn unassigned.
    hidden = unicodedata.category(char) in ("Cc", "Cf", "Cs", "Cn", "Co") and char != "\u200d"
    return f"⟨U+{ord(char):04X}⟩" if hidden else char
