"""Personal data found by rule and replaced by stand-ins of the same form, the same for the same value.

Rules see forms, not meanings: an e-mail address, an IBAN (ISO 13616: remainder 97 is 1), a card number (Luhn), a resident
id (GB 11643, ISO 7064), a social security number, a phone number, any other run of eight and more digits, the names of a
list, and patterns of the user. They find neither a street nor a name that isn't listed: somebody has to read what goes out.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from evalkit.scenario.patterns import Pattern

# The bound keeps a long run without an @ from being searched from each of its characters to its end.
_EMAIL = re.compile(r"[A-Za-z0-9._%+-]{1,128}@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+")
_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?![A-Za-z0-9])")
_CARD = re.compile(r"(?<!\d)\d(?:[ -]?\d){12,18}(?!\d)")
_RESIDENT = re.compile(r"(?<![0-9A-Za-z])\d{17}[0-9Xx](?![0-9A-Za-z])")
_SOCIAL_SECURITY = re.compile(r"(?<![\d-])\d{3}-\d{2}-\d{4}(?![\d-])")
_DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}")
# With its country's number the groups may be of any length, 1 digit (France) to 8; a slash after an area code is German.
_PHONE = re.compile(
    r"(?<![\w.,+])\+\d{1,3}(?:[ .-]?\(\d{1,5}\))?(?:[ .-]\d{1,8}){1,6}(?![\w]|[.,]\d)|"
    r"(?<![\w.,+/])0\d{2,5} ?/ ?\d{5,9}(?![\w/]|[.,]\d)|"
    r"(?<![\w.,+])(?:\+\d{1,3}[ .-]?)?(?:\(\d{1,5}\)[ .-]?)?\d{2,5}(?:[ .-]\d{2,5}){1,4}(?![\w]|[.,]\d)|"
    r"(?<![\w.,])\+\d{7,15}(?!\w)|(?<!\d)1[3-9]\d{9}(?!\d)"
)
_DIGITS = re.compile(r"(?<!\d)\d(?:[ -]?\d){7,}(?!\d)")
_CHINESE = re.compile(r"[\u3400-\u9fff]")
_FEWEST_PHONE_DIGITS, _MOST_PHONE_DIGITS = 7, 15
_NAMES_LATIN = ("Alex", "Robin", "Sam", "Kim", "Chris", "Jamie", "Morgan", "Taylor")
_NAMES_CHINESE = ("王小明", "李小红", "张小华", "刘小军", "陈小丽", "杨小强", "赵小云", "周小平")

KINDS = ("email", "iban", "card", "resident_id", "social_security", "phone", "number", "name")
"""What the rules find, in the order in which they claim a place; patterns of the user come first."""


@dataclass(frozen=True)
class Found:
    """One piece of personal data in a text: characters [start, end) and what it is."""

    start: int
    end: int
    kind: str


@dataclass(frozen=True)
class MaskRules:
    """What is looked for.

    Attributes:
        names: of people, as they are written.
        patterns: regular expressions of the user, by kind, searched under a limit of time.
    """

    names: Sequence[str] = ()
    patterns: Mapping[str, Pattern] = field(default_factory=dict)

    def find(self, text: str) -> list[Found]:
        """Every piece of personal data, in order, none overlapping another."""
        taken: list[Found] = []
        for found in self._candidates(text):
            if all(found.end <= other.start or other.end <= found.start for other in taken):
                taken.append(found)
        return sorted(taken, key=lambda found: found.start)

    def _candidates(self, text: str) -> Iterator[Found]:
        for kind, own in self.patterns.items():
            yield from (Found(start, end, kind) for start, end in own.spans(text) if text[start:end].strip())
        for kind, pattern, holds in _RULES:
            yield from (Found(*match.span(), kind) for match in pattern.finditer(text) if holds(match[0]))
        for pattern in self._name_patterns:
            yield from (Found(*match.span(), "name") for match in pattern.finditer(text))

    @cached_property
    def _name_patterns(self) -> list[re.Pattern[str]]:
        # A Latin name stands alone; Chinese is written without spaces. The longest first: Anna Maria before Anna.
        names = sorted(
            (name for name in set(self.names) if name.strip()), key=lambda name: (-len(name), name)
        )
        chinese = [re.escape(name) for name in names if _CHINESE.search(name)]
        others = [re.escape(name) for name in names if not _CHINESE.search(name)]
        found = [re.compile("|".join(chinese))] if chinese else []
        return found + ([re.compile(rf"(?<!\w)(?:{'|'.join(others)})(?!\w)")] if others else [])


@dataclass
class Masker:
    """Masks the texts of one conversation, so that equal values get equal stand-ins.

    Attributes:
        rules: what is looked for.
        stand_ins: fact name → stand-in of everything masked so far.
    """

    rules: MaskRules
    stand_ins: dict[str, str] = field(default_factory=dict)
    _facts: dict[tuple[str, str], str] = field(default_factory=dict, repr=False)

    def template(self, text: str) -> str:
        """`text` with `{fact}` in place of each piece of personal data."""
        return self._replaced(text, lambda fact: f"{{{fact}}}")

    def plain(self, text: str) -> str:
        """`text` with a stand-in in place of each piece of personal data."""
        return self._replaced(text, lambda fact: self.stand_ins[fact])

    def _replaced(self, text: str, word: Callable[[str], str]) -> str:
        parts, position = [], 0
        for found in self.rules.find(text):
            fact = self._fact(found.kind, text[found.start : found.end])
            parts += [text[position : found.start], word(fact)]
            position = found.end
        return "".join([*parts, text[position:]])

    def _fact(self, kind: str, value: str) -> str:
        same = value.casefold() if kind in ("email", "name") else re.sub(r"[\s().-]", "", value)
        fact = self._facts.get((kind, same))
        if fact is None:
            number = sum(known == kind for known, _ in self._facts) + 1
            fact = self._facts[kind, same] = f"{kind}_{number}"
            self.stand_ins[fact] = stand_in(kind, number, chinese=_CHINESE.search(value) is not None)
        return fact


def stand_in(kind: str, number: int, *, chinese: bool = False) -> str:
    """A made-up value of the same form: number 1, 2, ... of its kind. None belongs to a person."""
    if kind == "email":
        return f"customer{number}@example.com"
    if kind == "iban":
        account = f"TEST{number:014}"
        return f"GB{98 - _remainder_97(account + 'GB00'):02}{account}"
    if kind == "card":
        digits = f"400000000000{number:03}"
        return digits + next(str(last) for last in range(10) if luhn(f"{digits}{last}"))
    if kind == "resident_id":
        digits = f"11000019000101{number:03}"
        return digits + _resident_check(digits)
    if kind == "social_security":
        return f"000-00-{number:04}"
    if kind == "phone":
        return f"+1 202-555-{100 + number % 100:04}"  # reserved for fiction
    if kind == "number":
        return f"9000{number:05}"
    if kind == "name":
        names = _NAMES_CHINESE if chinese else _NAMES_LATIN
        again = (number - 1) // len(names)
        return names[(number - 1) % len(names)] + (str(again + 1) if again else "")
    return f"{kind.upper()}-{number:04}"


def luhn(digits: str) -> bool:
    """Whether the check digit of a card number is right (ISO/IEC 7812-1); spaces and hyphens don't count."""
    values = [int(digit) for digit in digits if digit.isdigit()][::-1]
    doubled = sum(
        value if index % 2 == 0 else sum(divmod(2 * value, 10)) for index, value in enumerate(values)
    )
    return doubled % 10 == 0


def iban(text: str) -> bool:
    """Whether the check digits of an IBAN are right (ISO 13616)."""
    compact = text.replace(" ", "")
    return _remainder_97(compact[4:] + compact[:4]) == 1


def _remainder_97(text: str) -> int:
    return int("".join(str(int(character, 36)) for character in text)) % 97


def _resident_id(text: str) -> bool:
    return _resident_check(text[:17]) == text[17].upper()


def _resident_check(digits: str) -> str:
    """The last character of a Chinese resident id (GB 11643: ISO 7064 MOD 11-2)."""
    total = sum(int(digit) * pow(2, 17 - index, 11) for index, digit in enumerate(digits))
    return "10X98765432"[total % 11]


def _phone(text: str) -> bool:
    digits = sum(character.isdigit() for character in text)
    return _FEWEST_PHONE_DIGITS <= digits <= _MOST_PHONE_DIGITS and _DATE.fullmatch(text) is None


def _any(text: str) -> bool:
    return True


def _not_a_date(text: str) -> bool:
    return _DATE.fullmatch(text) is None


_RULES: tuple[tuple[str, re.Pattern[str], Callable[[str], bool]], ...] = (
    ("email", _EMAIL, _any),
    ("iban", _IBAN, iban),
    ("resident_id", _RESIDENT, _resident_id),
    ("card", _CARD, luhn),
    ("social_security", _SOCIAL_SECURITY, _any),
    ("phone", _PHONE, _phone),
    ("number", _DIGITS, _not_a_date),
)
