"""Spans of characters that code of the user or a regular expression finds, and the tokens that they touch."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from evalkit.errors import InputError
from evalkit.tokenization import EncodedText, byte_offsets

Span = tuple[int, int]
BoolArray = npt.NDArray[np.bool_]


def found_spans(find: Callable[[str], Iterable[Span]], text: str, whose: str) -> list[Span]:
    """Sorted, disjoint character spans [start, end) of what `find` gives for a text, in any order, overlapping or not.

    Args:
        find: of the user.
        text: the text.
        whose: names the function in errors.

    Raises:
        InputError: the function fails, or gives something else than spans of the text.
    """
    try:
        found = [(int(start), int(end)) for start, end in find(text)]
    except Exception as error:  # a user's function may raise anything
        raise InputError(
            f"{whose}: its function failed with {type(error).__name__}: {error}; "
            "it takes a text and gives pairs of character positions"
        ) from None
    merged: list[Span] = []
    for start, end in sorted(found):
        if not 0 <= start <= end <= len(text):
            raise InputError(
                f"{whose}: its function gave the span {start}-{end} for a text of "
                f"{len(text)} characters; spans lie within the text"
            )
        if start == end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def touched(text: str, spans: Sequence[Span], encoded: EncodedText) -> BoolArray:
    """Which tokens share a byte with one of the character spans, shape (tokens,).

    Args:
        text: that was encoded.
        spans: sorted and disjoint.
        encoded: its tokens.
    """
    if not spans:
        return np.zeros(len(encoded.ids), dtype=np.bool_)
    edges = np.asarray(spans, dtype=np.int64)
    if not text.isascii():
        edges = byte_offsets(text)[edges]
    # A token overlaps a span where the first span that ends after the token's start begins before its end.
    following = np.searchsorted(edges[:, 1], encoded.starts, side="right")
    starts = np.append(edges[:, 0], encoded.size_bytes + 1)[following]
    return (starts < encoded.ends) & (encoded.starts < encoded.ends)
