"""Regular expressions of dialogue files, with a limit on the time that a search may take.

Python's own `re` can't be stopped: `(a+)+$` on a few dozen characters outlives any run. `regex` reads the same syntax
and stops; a search that was stopped has no outcome, so it is an error of the expression, never "not found".
"""

from collections.abc import Iterable

import regex

from evalkit.errors import InputError

SEARCH_TIMEOUT_S = 1.0
"""Longest search of one reply; a sound expression takes less than a millisecond."""

# What makes expressions that try every split of a text show it.
_HARD_TEXTS = ("a" * 400 + "!", "0" * 400 + "!", " " * 400 + "!", "ab 1, " * 200, "\u597d" * 400 + "!")


class SlowPatternError(InputError):
    """A search took longer than `SEARCH_TIMEOUT_S`."""


class BrokenPatternError(ValueError):
    """An expression can't be compiled; the text says why."""


class Pattern:
    """A compiled expression that is searched for under the time limit."""

    def __init__(self, expression: str) -> None:
        """Compile.

        Raises:
            BrokenPatternError: it isn't a regular expression.
        """
        self.expression = expression
        try:
            self._compiled = regex.compile(expression)
        except (regex.error, OverflowError, RecursionError) as error:
            raise BrokenPatternError(str(error)) from None

    @property
    def groups(self) -> int:
        """Number of its groups."""
        return int(self._compiled.groups)

    def find(self, text: str, group: int = 0) -> str | None:
        """What the first match in `text` (or a group of it) holds; None without a match.

        Raises:
            SlowPatternError: it took too long.
        """
        try:
            match = self._compiled.search(text, timeout=SEARCH_TIMEOUT_S, concurrent=True)
        except TimeoutError:
            raise self._slow(text) from None
        return None if match is None else match[group]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Start and end of every match in `text`.

        Raises:
            SlowPatternError: it took too long.
        """
        try:
            found = self._compiled.finditer(text, timeout=SEARCH_TIMEOUT_S, concurrent=True)
            return [match.span() for match in found]
        except TimeoutError:
            raise self._slow(text) from None

    def check_speed(self, texts: Iterable[str] = ()) -> None:
        """Search texts that make bad expressions slow, and `texts`.

        Raises:
            SlowPatternError: one takes too long.
        """
        for text in (*_HARD_TEXTS, *texts):
            self.find(text)

    def _slow(self, text: str) -> SlowPatternError:
        return SlowPatternError(
            f"the regular expression {self.expression!r} took more than {SEARCH_TIMEOUT_S:g} s on a text of "
            f"{len(text)} characters; write it without repeats inside repeats"
        )
