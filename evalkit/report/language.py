"""The language of a report: every sentence of ours goes through it, data and metric names don't.

Views and verdicts hold English, since verdict.json does; a report translates when it is drawn. A phrase may
hold fields: `{n}` is kept as it is, `{n:t}` is itself a phrase and translated too, `{n:l}` is a comma-separated
list of such phrases.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, get_args

from evalkit.errors import InputError

Code = Literal["en", "zh"]

_FIELD = re.compile(r"\{(\w+)(?::([tl]))?\}")


@dataclass(frozen=True)
class _Pattern:
    """A phrase with fields."""

    regex: re.Pattern[str]
    fields: Mapping[str, str]
    translated: str


@dataclass(frozen=True)
class Language:
    """Translates the phrases of reports.

    Attributes:
        code: as `--lang` names it; tag: as HTML does.
        phrases: English to translated, whole sentences; none for English itself.
    """

    code: Code
    tag: str
    phrases: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, text: str) -> str:
        """The translation; a text that has none (data, a reason of someone else's metric) as it is."""
        if not self.phrases or not text:
            return text
        found = self.translation(text)
        return text if found is None else found

    def translation(self, text: str) -> str | None:
        """The translation, or None where there is none."""
        exact = self.phrases.get(text)
        if exact is not None:
            return exact
        for pattern in _patterns(self.code):
            match = pattern.regex.fullmatch(text)
            if match is not None:
                return self._filled(pattern, match)
        return None

    def _filled(self, pattern: _Pattern, match: re.Match[str]) -> str:
        values = {name: self._field(match[name], kind) for name, kind in pattern.fields.items()}
        return _FIELD.sub(lambda found: values[found[1]], pattern.translated)

    def _field(self, text: str, kind: str) -> str:
        if kind == "l":
            return "、".join(self(item) for item in text.split(", "))
        return self(text) if kind == "t" else text


ENGLISH = Language("en", "en")


@cache
def language(code: str) -> Language:
    """The language of a code.

    Raises:
        InputError: there is no such language.
    """
    if code == "en":
        return ENGLISH
    if code == "zh":
        from evalkit.report.chinese import PHRASES

        return Language("zh", "zh-CN", PHRASES)
    raise InputError(f"--lang {code}: choose from {', '.join(get_args(Code))}")


@cache
def _patterns(code: Code) -> tuple[_Pattern, ...]:
    """Phrases with fields, those with the most text of their own first: the most specific one wins."""
    with_fields = [item for item in language(code).phrases.items() if _FIELD.search(item[0])]
    with_fields.sort(key=lambda item: -len(_FIELD.sub("", item[0])))
    return tuple(_pattern(english, translated) for english, translated in with_fields)


def _pattern(english: str, translated: str) -> _Pattern:
    fields = {match[1]: match[2] or "" for match in _FIELD.finditer(english)}
    parts, at = [], 0
    for match in _FIELD.finditer(english):
        parts += [re.escape(english[at : match.start()]), f"(?P<{match[1]}>.+?)"]
        at = match.end()
    parts.append(re.escape(english[at:]))
    return _Pattern(re.compile("".join(parts), re.DOTALL), fields, translated)
