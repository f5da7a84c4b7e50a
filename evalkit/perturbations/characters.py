"""Perturbations of single characters: typing errors, case, full-width forms. What is said stays the same."""

import unicodedata
from random import Random

_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


def _neighbours() -> dict[str, str]:
    places = {letter: (row, column) for row, keys in enumerate(_ROWS) for column, letter in enumerate(keys)}
    near: dict[str, str] = {}
    for letter, (row, column) in places.items():
        # A lower row stands half a key to the right: below key c are keys c-1 and c, above it c and c+1.
        keys = {(row, column - 1), (row, column + 1)}
        keys |= {(row + 1, column - 1), (row + 1, column), (row - 1, column), (row - 1, column + 1)}
        near[letter] = "".join(sorted(other for other, place in places.items() if place in keys))
    return near


_NEAR = _neighbours()

# Common slips of Chinese input methods: characters of equal sound, taken for each other.
_SOUND_ALIKE = (
    "的得地",
    "在再",
    "做作",
    "帐账",
    "那哪",
    "以已",
    "他她它",
    "象像",
    "坐座",
    "即既",
    "须需",
    "定订",
    "付负副",
    "款宽",
    "支只知",
    "行形型",
    "转专",
    "贷代带",
    "额饿",
    "费废",
    "卡咖",
    "号好",
    "息习",
    "期其",
    "还换",
    "取曲",
    "存村",
    "银因",
    "份分",
    "挂瓜",
    "失师",
    "查察",
    "密秘",
    "码马",
)
_ALIKE = {character: group.replace(character, "") for group in _SOUND_ALIKE for character in group}


def typos(text: str, random: Random, rate: float) -> str:
    """`text` with typing errors: a letter struck beside its key, swapped with the next, dropped or doubled.

    Chinese characters are taken for one of like sound where a common slip is known, else swapped, dropped or
    doubled. Digits and punctuation stay: another amount would be another text.

    Args:
        text: any.
        random: the text's own generator.
        rate: share of the letters that are hit; 0 changes nothing.
    """
    result: list[str] = []
    index = 0
    while index < len(text):
        character = text[index]
        following = text[index + 1] if index + 1 < len(text) else ""
        index += 1
        # A letter with a combining mark behind it stays whole.
        if not character.isalpha() or _marked(following) or random.random() >= rate:
            result.append(character)
            continue
        kind = random.choice(_kinds(character))
        if kind == "near":
            result.append(_struck(character, random))
        elif kind == "double":
            result += [character, character]
        elif kind == "swap":
            after = text[index + 1] if index + 1 < len(text) else ""
            if following.isalpha() and not _marked(after):
                result += [following, character]
                index += 1
            else:
                result.append(character)
    return "".join(result)


def recase(text: str, random: Random, to: str) -> str:
    """`text` in lower or upper case; letters without case stay, and nothing is drawn."""
    return text.lower() if to == "lower" else text.upper()


def fullwidth(text: str, random: Random, rate: float) -> str:
    """`text` with ASCII letters, digits and punctuation in their full-width forms; spaces stay.

    Args:
        text: any.
        random: the text's own generator.
        rate: share of those characters.
    """
    return "".join(
        chr(ord(character) + 0xFEE0) if "!" <= character <= "~" and random.random() < rate else character
        for character in text
    )


def _kinds(character: str) -> tuple[str, ...]:
    if character.lower() in _NEAR or character in _ALIKE:
        return ("near", "swap", "drop", "double")
    return ("swap", "drop", "double")


def _struck(character: str, random: Random) -> str:
    if character in _ALIKE:
        return random.choice(_ALIKE[character])
    other = random.choice(_NEAR[character.lower()])
    return other.upper() if character.isupper() else other


def _marked(following: str) -> bool:
    return bool(following) and unicodedata.category(following)[0] == "M"
