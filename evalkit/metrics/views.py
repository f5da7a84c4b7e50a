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
from evalkit.metrics.spans import Span, found_spans
from evalkit.scenario.additions_schema import View


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
        """Sorted, disjoint character spans; see `found_spans`."""
        return found_spans(self.find, text, f"text.views: {self.name}")


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
