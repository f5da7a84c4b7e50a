"""Arguments of the user, checked where they are given: one clear line instead of an error deep in a training."""

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from types import UnionType
from typing import Any

import numpy as np

from evalkit.errors import InputError


def shown(value: Any) -> str:
    """A value as it stands in a message: its beginning, on one line."""
    return " ".join(f"{value!r:.80}".split())


def whole(name: str, value: Any, *, least: int) -> int:
    """A whole number from `least` on.

    Raises:
        InputError: anything else; True is no number, 2.0 isn't whole.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name}: a whole number from {least} on is needed (got {shown(value)})")
    return int(value)


def number(name: str, value: Any, *, above: float, below: float = math.inf, what: str = "") -> float:
    """A finite number between two bounds, neither of which it may be.

    Args:
        name, what: for the message; `what` says which numbers there are, e.g. "a share above 0 and below 1".

    Raises:
        InputError: anything else.
    """
    fits = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not fits or not math.isfinite(value) or not above < value < below:
        raise InputError(f"{name}: {what or f'a number above {above:g}'} is needed (got {shown(value)})")
    return float(value)


def instance(name: str, value: Any, kind: type[Any] | UnionType, what: str) -> Any:
    """A value of a class, or of one of several; it is given back.

    Args:
        what: the kind that is needed, in words.

    Raises:
        InputError: it is of another one.
    """
    if not isinstance(value, kind):
        given = f"the class {value.__name__}" if isinstance(value, type) else shown(value)
        raise InputError(f"{name}: {what} is needed (got {given})")
    return value


def function(name: str, value: Any, what: str, inputs: int | None = None) -> None:
    """Something that can be called.

    Args:
        inputs: how many values it is called with, by position; None: not known here. What doesn't tell its parameters
            (some written in C) is taken as it is.

    Raises:
        InputError: it can't, or not with so many.
    """
    if not callable(value):
        raise InputError(f"{name}: {what} is needed (got {shown(value)})")
    if inputs is None:
        return
    try:
        inspect.signature(value).bind(*range(inputs))
    except TypeError as error:
        raise InputError(f"{name}: {what} is needed (called with {inputs}: {error})") from None
    except ValueError:
        return


def several(name: str, value: Any, what: str) -> tuple[Any, ...]:
    """The parts of a list or another sequence, which a text or a mapping isn't.

    Raises:
        InputError: it is something else, a single part for instance.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence | Iterable):
        raise InputError(f"{name}: a list of {what} is needed (got {shown(value)})")
    return tuple(value)


def has(name: str, value: Any, members: Sequence[str], what: str) -> None:
    """An object with certain members, e.g. one of the user's that stands for a trigger.

    Raises:
        InputError: it is a class instead of an object, or a member is missing.
    """
    if isinstance(value, type):
        raise InputError(
            f"{name}: the class {value.__name__} instead of an object; write {value.__name__}(...)"
        )
    missing = [member for member in members if not hasattr(value, member)]
    if missing:
        raise InputError(
            f"{name}: {what} with {', '.join(members)} is needed ({shown(value)} has no {missing[0]})"
        )
