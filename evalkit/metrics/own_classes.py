"""Token classes of the user: they take part in the precedence, so that the classes stay a partition.

See docs/own-metrics.md.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from evalkit.errors import InputError
from evalkit.metrics.context import ClassSetup
from evalkit.metrics.references import load_reference
from evalkit.metrics.spans import BoolArray, Span, found_spans, touched
from evalkit.metrics.spec import OWN_PREFIX
from evalkit.tokenization import EncodedText

_NAME = re.compile(rf"{OWN_PREFIX}[A-Za-z0-9_.-]+")
_CACHED_TOKENS = 1 << 16


@dataclass(frozen=True)
class OwnClass:
    """The declaration of a user's token class: exactly one of `spans` and `token` says which tokens belong to it.

    Attributes:
        name: `own/` and a name; the class stands so in the precedence and in perplexity/<name>.
        action: what to do when its perplexity is bad.
        alarm: by which share its perplexity lies above the baseline's when that is usually said, e.g. 0.1.
        spans: from a text to spans [start, end) of its characters, in any order; a token belongs to the class where
            it shares a byte with one of them.
        token: from the bytes of the source text that a token covers to whether it belongs to the class. It is asked
            once for equal bytes, and not for a token that covers none.
    """

    name: str
    action: str
    alarm: float
    spans: Callable[[str], Iterable[Span]] | None = None
    token: Callable[[bytes], bool] | None = None


class ClassMembers:
    """Finds the tokens of one own class."""

    def __init__(self, declared: OwnClass) -> None:
        self.name = declared.name
        self._spans = declared.spans
        self._token = None if declared.token is None else lru_cache(_CACHED_TOKENS)(declared.token)

    def __call__(self, text: str, encoded: EncodedText) -> BoolArray:
        """Which tokens belong to the class, shape (tokens,).

        Raises:
            InputError: the user's function fails, or gives something else than declared.
        """
        if self._spans is not None:
            return touched(text, found_spans(self._spans, text, f"text.classes: {self.name}"), encoded)
        data = text.encode()
        pairs = zip(encoded.starts.tolist(), encoded.ends.tolist(), strict=True)
        return np.fromiter(
            (start < end and self._holds(data[start:end]) for start, end in pairs),
            dtype=np.bool_,
            count=len(encoded.ids),
        )

    def _holds(self, token: bytes) -> bool:
        assert self._token is not None
        try:
            answer = self._token(token)
        except Exception as error:  # a user's function may raise anything
            raise InputError(
                f"text.classes: {self.name}: its function failed for the token {token!r} with "
                f"{type(error).__name__}: {error}"
            ) from None
        if not isinstance(answer, bool | np.bool_):
            raise InputError(
                f"text.classes: {self.name}: its function gave {answer!r:.60} for the token {token!r}; "
                "True or False is needed"
            )
        return bool(answer)


def load_class(reference: str, modules: Path | None) -> tuple[ClassSetup, OwnClass]:
    """Load a class of the user.

    Args:
        reference: `module:attr`, or an entry point.
        modules: folder of the scenario's own modules.

    Raises:
        InputError: it can't be loaded, or its declaration doesn't hold.
    """
    loaded = load_reference(reference, modules)
    declared = _checked(loaded.target, reference)
    return ClassSetup(
        declared.name, reference, loaded.sha256, declared.action, float(declared.alarm)
    ), declared


def _checked(target: Any, reference: str) -> OwnClass:
    if not isinstance(target, OwnClass):
        raise InputError(
            f"{reference}: an evalkit.metrics.own_classes.OwnClass is needed (got {type(target).__name__}); "
            "see docs/own-metrics.md"
        )
    number = isinstance(target.alarm, int | float) and not isinstance(target.alarm, bool)
    problems = {
        "name": isinstance(target.name, str) and _NAME.fullmatch(target.name) is not None,
        "action": isinstance(target.action, str) and bool(target.action),
        "alarm": number and math.isfinite(target.alarm) and target.alarm > 0,
        "spans": target.spans is None or callable(target.spans),
        "token": target.token is None or callable(target.token),
    }
    wrong = next((field for field, right in problems.items() if not right), None)
    if wrong is not None:
        shown = f"{getattr(target, wrong)!r:.60}"
        hint = f" (it begins with {OWN_PREFIX})" if wrong == "name" else ""
        raise InputError(f"{reference}: {wrong}: {shown} isn't possible{hint}; see docs/own-metrics.md")
    if (target.spans is None) == (target.token is None):
        raise InputError(f"{reference}: {target.name}: give exactly one of spans and token")
    return target
