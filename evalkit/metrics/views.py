"""Views of the tokens: user-defined selections that may overlap each other and the classes.

A view selects spans of the text by a regular expression or a function, or whole texts by a tag. A token belongs to
a view where it shares a byte with one of its spans.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from evalkit.canonical import sha256_json
from evalkit.errors import InputError
from evalkit.metrics.context import ViewSetup
from evalkit.metrics.references import load_reference
from evalkit.scenario.additions_schema import View

Span = tuple[int, int]


@dataclass(frozen=True)
class SpanView:
    """A view by spans.

    Attributes:
        name: of the view.
        find: character spans [start, end) of a text, in any order, overlapping or not.
    """

    name: str
    find: Callable[[str], Iterable[Span]]

    def spans(self, text: str) -> list[Span]:
        """Sorted, disjoint character spans.

        Raises:
            InputError: the user's function fails, or gives something else than spans of the text.
        """
        try:
            found = [(int(start), int(end)) for start, end in self.find(text)]
        except Exception as error:  # a user's function may raise anything
            raise InputError(
                f"text.views: {self.name}: its function failed with {type(error).__name__}: {error}; "
                "it takes a text and gives pairs of character positions"
            ) from None
        merged: list[Span] = []
        for start, end in sorted(found):
            if not 0 <= start <= end <= len(text):
                raise InputError(
                    f"text.views: {self.name}: its function gave the span {start}-{end} for a text of "
                    f"{len(text)} characters; spans lie within the text"
                )
            if start == end:
                continue
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], end))
            else:
                merged.append((start, end))
        return merged


def view_setup(view: View, modules: Path | None) -> tuple[ViewSetup, SpanView | None]:
    """What the metrics know of a view, and how its spans are found (None for a tag: that is known from the records).

    Args:
        view: as the scenario declares it.
        modules: folder of the scenario's own modules.

    Raises:
        InputError: the function can't be loaded.
    """
    if view.tag is not None:
        return ViewSetup(view.name, sha256_json({"tag": view.tag}), view.tag), None
    if view.regex is not None:
        pattern = re.compile(view.regex)

        def matches(text: str) -> list[Span]:
            return [match.span() for match in pattern.finditer(text)]

        return ViewSetup(view.name, sha256_json({"regex": view.regex})), SpanView(view.name, matches)
    loaded = load_reference(view.callable or "", modules)
    if not callable(loaded.target):
        raise InputError(f"{loaded.text}: a function of a text is needed (got {loaded.target!r:.60})")
    identity = {"callable": loaded.text, "source": loaded.sha256}
    return ViewSetup(view.name, sha256_json(identity)), SpanView(view.name, loaded.target)
