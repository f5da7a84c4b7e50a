"""Scoring windows: which tokens a model sees together, so that every token is scored exactly once.

A window that newly scores tokens [a, b) sees the longest left context that fits into `length` input
positions, the last of which is the token before b-1. A window after the first sees at least one earlier
token.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from evalkit.errors import InputError
from evalkit.scenario.schema import Window as WindowPolicy


@dataclass(frozen=True)
class Window:
    """One teacher-forced pass over a part of a text; positions count from 0 within the text.

    Attributes:
        start: first token that is fed.
        first_scored, end: the tokens [first_scored, end) are newly scored.
        prefix: whether the prefix token is fed before the token at `start`.
    """

    start: int
    first_scored: int
    end: int
    prefix: bool

    @property
    def inputs(self) -> int:
        """Input positions: the prefix where there is one, then tokens [start, end-1)."""
        return self.end - 1 - self.start + int(self.prefix)

    @property
    def scored(self) -> int:
        """Newly scored tokens; they are the targets of the last so many input positions."""
        return self.end - self.first_scored


def plan_windows(tokens: int, policy: WindowPolicy, *, has_prefix: bool) -> Iterator[Window]:
    """The windows of a text.

    The first window scores as many tokens as fit; each later one scores `stride` more (fewer at the end, or
    where a repeated prefix takes the place of one).

    Args:
        tokens: length of the text in tokens.
        policy: length, stride and prefix.
        has_prefix: whether the tokenizer has a prefix token; without one `first` and `every` act as `none`.

    Yields:
        Windows in order. Without a prefix the first token is scored by none of them: nothing conditions it.
    """
    first_prefix = has_prefix and policy.prefix != "none"
    every_prefix = has_prefix and policy.prefix == "every"
    scored = 0 if first_prefix else 1
    if scored >= tokens:
        return
    end = min(tokens, policy.length + scored)
    yield Window(start=0, first_scored=scored, end=end, prefix=first_prefix)
    # Inputs of later windows: the repeated prefix, and always one token before the first one scored.
    room = policy.length - int(every_prefix)
    step = min(policy.stride, room)
    while end < tokens:
        scored, end = end, min(tokens, end + step)
        yield Window(start=max(0, end - 1 - room), first_scored=scored, end=end, prefix=every_prefix)


def resolve_window(policy: WindowPolicy | None, max_length: int) -> WindowPolicy:
    """The window to use: the asked one, or the default max_length/max_length/first.

    Raises:
        InputError: the asked length is above what the model can read.
    """
    if policy is None:
        return WindowPolicy(length=max_length, stride=max_length, prefix="first")
    if policy.length > max_length:
        raise InputError(
            f"window.length: {policy.length} is above the model's max_length {max_length}; "
            f"give at most {max_length}"
        )
    return policy


def parse_window(text: str) -> WindowPolicy:
    """A window policy written LENGTH/STRIDE/PREFIX.

    Raises:
        InputError: it isn't written so, or the numbers don't fit.
    """
    parts = text.split("/")
    try:
        length, stride, prefix = int(parts[0]), int(parts[1]), parts[2]
        if len(parts) != 3:
            raise IndexError
        return WindowPolicy.model_validate({"length": length, "stride": stride, "prefix": prefix})
    except (ValueError, IndexError) as error:
        detail = ""
        if isinstance(error, ValidationError):
            detail = f": {error.errors(include_url=False)[0]['msg'].removeprefix('Value error, ')}"
        raise InputError(
            f"--window {text}: LENGTH/STRIDE/PREFIX is needed, e.g. 512/512/first{detail}"
        ) from None
