"""Perturbations of whole sentences: left out, or beside the point, or of another domain."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from evalkit.perturbations.language import is_chinese, sentences

# Written for this project: true of any day, about nothing that a bank would act on.
_DISTRACTIONS = {
    False: (
        "The weather has been mild this week.",
        "My sister plays the piano on Sundays.",
        "There is a new bakery around the corner.",
        "The train was a little late this morning.",
        "We painted the kitchen in a light blue.",
        "The library opens at nine.",
        "A friend of mine collects old maps.",
        "The dog next door barks at the postman.",
        "We had soup for lunch.",
        "The garden needs some rain.",
        "My favourite colour is green.",
        "The football match ended in a draw.",
    ),
    True: (
        "这周天气一直很暖和。",
        "我妹妹星期天弹钢琴。",
        "街角新开了一家面包店。",
        "今天早上火车晚了一点。",
        "我们把厨房刷成了浅蓝色。",
        "图书馆九点开门。",
        "我有个朋友收集旧地图。",
        "隔壁的狗总对邮递员叫。",
        "我们午饭喝了汤。",
        "花园需要下点雨。",
        "我最喜欢的颜色是绿色。",
        "足球比赛打成了平局。",
    ),
}


def drop_sentences(text: str, random: Random, rate: float) -> str:
    """`text` without some of its sentences, of which one always stays; a text of one sentence is left alone.

    Args:
        text: any.
        random: the text's own generator.
        rate: probability that a sentence is left out.
    """
    parts = [part for part in sentences(text) if part.strip()]
    if len(parts) < 2 or rate == 0:
        return text
    draws = [random.random() for _ in parts]
    kept = [part for part, draw in zip(parts, draws, strict=True) if draw >= rate]
    # The one that was nearest to staying.
    kept = kept or [parts[draws.index(max(draws))]]
    return text if len(kept) == len(parts) else "".join(kept)


def distract(text: str, random: Random, count: int) -> str:
    """`text` with `count` sentences beside the point between its own, in its language."""
    return insert(text, random, _DISTRACTIONS[is_chinese(text)], count)


@dataclass(frozen=True)
class MixedIn:
    """What is mixed in.

    Attributes:
        sentences: to draw from.
        rate: their number over that of the text's own sentences; at least one is put in, none at 0.
    """

    sentences: tuple[str, ...]
    rate: float


def mix(text: str, random: Random, foreign: MixedIn) -> str:
    """`text` with sentences of another domain between its own."""
    if foreign.rate == 0:
        return text
    count = max(1, round(foreign.rate * len(sentences(text))))
    return insert(text, random, foreign.sentences, count)


def insert(text: str, random: Random, others: Sequence[str], count: int) -> str:
    """`text` with `count` of the `others` (drawn without repeats, as far as they reach) between its sentences."""
    parts = sentences(text)
    for other in random.sample(others, min(count, len(others))):
        parts.insert(random.randrange(len(parts) + 1), other.strip())
    joined = ""
    for part in parts:
        joined += _gap(joined, part) + part
    return joined


def _gap(before: str, after: str) -> str:
    """A space where two sentences meet that are written with one."""
    if not before or before[-1].isspace() or after[:1].isspace():
        return ""
    return "" if is_chinese(before[-40:]) or is_chinese(after[:40]) else " "
