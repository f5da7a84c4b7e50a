"""Text → features, for training and serving alike. Artefacts refer to these functions by name.

Written without locale or language detection: a Latin word is one unit, a Chinese character is one unit.
"""

import re
import unicodedata
from itertools import pairwise
from typing import NamedTuple

_UNIT = re.compile(r"[\u3400-\u9fff]|[^\W\d_\u3400-\u9fff]+|\d+")
_RUN = re.compile(r"[^\W_]+")
_DIGITS = re.compile(r"\d+")
_CHARACTER_SIZES = (2, 3, 4)


class RatedTurn(NamedTuple):
    """What the satisfaction predictor looks at.

    Attributes:
        user_text: what the user said.
        reply: what the user was told.
        turn_index: position of the turn in the session, from 0.
        failed_turns: turns in a row, this one included, that failed the user.
    """

    user_text: str
    reply: str
    turn_index: int
    failed_turns: int


def normalise(text: str) -> str:
    """Compatibility characters unified (full-width forms), lower case, every number the same."""
    return _DIGITS.sub("0", unicodedata.normalize("NFKC", text).lower())


def word_features(text: str) -> list[str]:
    """Units and pairs of units."""
    return _unit_ngrams("w", normalise(text))


def intent_features(text: str) -> list[str]:
    """Units and pairs of units, and 2 to 4 neighbouring characters within words (which forgive typing errors)."""
    text = normalise(text)
    features = _unit_ngrams("w", text)
    for run in _RUN.findall(text):
        padded = f" {run} "
        features += [
            padded[at : at + size] for size in _CHARACTER_SIZES for at in range(len(padded) - size + 1)
        ]
    return features


def satisfaction_features(turn: RatedTurn) -> list[str]:
    """Units of both texts, how far the session is and how often it failed, and how the reply relates to the text."""
    user, reply = normalise(turn.user_text), normalise(turn.reply)
    features = _unit_ngrams("u", user) + _unit_ngrams("r", reply)
    # Thermometer coding: "at least n", so that one weight carries over to larger values.
    features += [f"turn>={step}" for step in range(1, min(turn.turn_index, 8) + 1)]
    features += [f"failed>={step}" for step in range(1, min(turn.failed_turns, 4) + 1)]
    said, answered = set(_UNIT.findall(user)), set(_UNIT.findall(reply))
    if not answered:
        features.append("reply empty")
    elif said & answered:
        features.append("reply takes up the user's words")
    return features


def _unit_ngrams(kind: str, text: str) -> list[str]:
    units = _UNIT.findall(text)
    return [f"{kind}:{unit}" for unit in units] + [f"{kind}:{a} {b}" for a, b in pairwise(units)]
