"""Features of a text, by which a validation set is compared with other traffic."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evalkit.canonical import sha256_json
from evalkit.checks import function as check_function
from evalkit.checks import instance, several
from evalkit.errors import InputError
from evalkit.metrics.estimators import FloatArray
from evalkit.metrics.glossary import Glossary
from evalkit.metrics.references import load_reference
from evalkit.tokenization import TextTokenizer

_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)"
)
_NUMBER = r"\d+(?:[.,]\d+)*"
_CURRENCY = r"(?:us dollars?|dollars?|bucks|euros?|pounds?|cents?|usd|eur|gbp|chf|jpy|cny|rmb|yuan|元|块|美元|欧元|英镑|€|£|\$|¥|%)"
# The first that matches at a place wins, so that the parts of a date or an amount aren't counted again as numbers.
_ENTITY = re.compile(
    "|".join(
        (
            # Dates: 2024-03-01, 1/3/2024, 2024年3月1日, 3月1日, March 3rd, 3 March, Tuesday.
            r"\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}|(?:\d{4}年)?\d{1,2}月(?:\d{1,2}[日号])?",
            rf"\b{_MONTH}\.? \d{{1,2}}(?:st|nd|rd|th)?\b|\b\d{{1,2}}(?:st|nd|rd|th)?(?: of)? {_MONTH}\b",
            r"\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b|星期[一二三四五六日天]",
            # Amounts.
            rf"[$€£¥] ?{_NUMBER}|{_NUMBER} ?{_CURRENCY}",
            # Account-like: IBAN, runs of eight and more digits, letters with four and more digits, masked numbers.
            r"(?-i:\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b)|\b\d(?:[ -]?\d){7,}\b|\b[a-z]{1,4}-?\d{4,}\b|[*x]{2,}\d{3,}",
            _NUMBER,
        )
    ),
    re.IGNORECASE,
)

TOKEN_LENGTH, ENTITY_DENSITY = "token_length", "entity_density"
NUMBER_DENSITY, TERM_DENSITY = "number_density", "term_density"
BUILT_IN = (TOKEN_LENGTH, ENTITY_DENSITY, NUMBER_DENSITY, TERM_DENSITY)


@dataclass(frozen=True)
class Feature:
    """One number of a text.

    Attributes:
        name: as in the scenario.
        measure: the number of each text, in order.
        identity: what decides the number, by content, for digests.
    """

    name: str
    measure: Callable[[Sequence[str]], Sequence[float]]
    identity: str


def token_length(tokenizer: TextTokenizer, tokenizer_sha256: str) -> Feature:
    """Tokens of the text as it stands, nothing added.

    Args:
        tokenizer: of the model.
        tokenizer_sha256: of its file, or any name that stands for it.

    Raises:
        InputError: it isn't a tokenizer.
    """
    instance("token_length: tokenizer", tokenizer, TextTokenizer, "a TextTokenizer, e.g. a validation's,")

    def measure(texts: Sequence[str]) -> list[float]:
        return [float(len(encoded.ids)) for encoded in tokenizer.encode_batch(texts)]

    return Feature(TOKEN_LENGTH, measure, sha256_json({TOKEN_LENGTH: tokenizer_sha256}))


def entity_density(terms: Sequence[str] | None = None) -> Feature:
    """Entities per 100 characters: numbers, dates, amounts, account-like ids, and terms of a glossary.

    Overlapping entities count once. Numbers in words aren't seen.

    Raises:
        InputError: `terms` isn't a list of texts.
    """
    known = _terms(ENTITY_DENSITY, () if terms is None else terms)
    glossary = Glossary(known) if known else None
    identity = {ENTITY_DENSITY: 1, "terms": sorted(known)}
    return _density(ENTITY_DENSITY, lambda text: _entities(text, glossary), identity)


def number_density() -> Feature:
    """Numbers, dates, amounts and account-like ids per 100 characters: `entity_density` without a glossary's terms."""
    return _density(NUMBER_DENSITY, lambda text: _entities(text, None), {NUMBER_DENSITY: 1})


def term_density(terms: Sequence[str]) -> Feature:
    """Terms of a glossary per 100 characters, apart from all other entities.

    Raises:
        InputError: `terms` isn't a list of texts, or is empty.
    """
    known = _terms(TERM_DENSITY, terms)
    if not known:
        raise InputError(f"{TERM_DENSITY}: at least one term is needed")
    glossary = Glossary(known)
    identity = {TERM_DENSITY: 1, "terms": sorted(known)}
    return _density(TERM_DENSITY, lambda text: len(glossary.spans(text)), identity)


def _terms(name: str, terms: Sequence[str]) -> tuple[str, ...]:
    found = several(f"{name}: terms", terms, "texts")
    return tuple(instance(f"{name}: terms", term, str, "a list of texts") for term in found)


def _density(name: str, count: Callable[[str], int], identity: Mapping[str, Any]) -> Feature:
    """What `count` finds in a text, per 100 characters."""

    def measure(texts: Sequence[str]) -> list[float]:
        return [100 * count(text) / len(text) if text else 0.0 for text in texts]

    return Feature(name, measure, sha256_json(identity))


def own_feature(reference: str, modules: Path | None) -> Feature:
    """A feature of the user: a function from a text to a number, as `module:attr`.

    Raises:
        InputError: it can't be loaded.
    """
    loaded = load_reference(reference, modules)
    if not callable(loaded.target):
        raise InputError(f"{reference}: a function from a text to a number is needed")
    return from_function(reference, loaded.target, sha256_json({"own": reference, "source": loaded.sha256}))


def from_function(name: str, function: Callable[[str], float], identity: str | None = None) -> Feature:
    """A feature from a function of a text.

    Args:
        name: for messages and reports.
        function: from a text to a finite number.
        identity: of its code; None: its name.

    Raises:
        InputError: `function` can't be called, or the name is no text.
    """
    check_function(
        f"feature {instance('feature: name', name, str, 'a text')}",
        function,
        "a function of a text",
        inputs=1,
    )

    def measure(texts: Sequence[str]) -> list[float]:
        values = []
        for text in texts:
            try:
                values.append(float(function(text)))
            except Exception as error:  # a user's function may raise anything
                raise InputError(
                    f"{name}: failed with {type(error).__name__}: {error} for {text!r:.60}"
                ) from None
        return values

    return Feature(name, measure, identity or sha256_json({"own": name}))


def feature_matrix(features: Sequence[Feature], texts: Sequence[str]) -> FloatArray:
    """Every feature of every text, shape (texts, features).

    Raises:
        InputError: names the feature: it failed, gave fewer or more numbers than texts, or no finite number.
    """
    matrix = np.empty((len(texts), len(features)))
    for column, feature in enumerate(features):
        matrix[:, column] = _values(feature, texts) if texts else []
    return matrix


def _values(feature: Feature, texts: Sequence[str]) -> list[float]:
    """One number a text, whatever the user's function gives."""
    try:
        found = list(feature.measure(texts))
    except InputError:
        raise
    except Exception as error:  # a user's function may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{feature.name}: failed with {reason:.200}") from None
    if len(found) != len(texts):
        raise InputError(
            f"{feature.name}: gave {len(found)} numbers for {len(texts)} texts; one a text is needed"
        )
    for text, value in zip(texts, found, strict=True):
        if not isinstance(value, int | float | np.number | np.bool_) or not math.isfinite(value):
            raise InputError(
                f"{feature.name}: gave {value!r:.60} for {text!r:.60}; a finite number is needed"
            )
    return [float(value) for value in found]


def _entities(text: str, glossary: Glossary | None) -> int:
    spans = [match.span() for match in _ENTITY.finditer(text)]
    if glossary is None:
        return len(spans)
    # Both lists rise; a term that shares a character with an entity isn't another one.
    apart = 0
    for start, end in glossary.spans(text):
        apart += all(end <= taken or start >= until for taken, until in spans)
    return len(spans) + apart
