"""Words that fill the templates. The lists are short on purpose: a model of 0.4 M parameters has to learn them.

`*_UNSEEN` lists stand in held-out texts only; no training record holds them.
"""

from random import Random

NAMES_EN = (
    "Maria", "Peter", "Anna", "Laura", "David", "Sarah", "Paul", "Emma", "Mark", "Julia", "Simon",
    "Nina", "Oliver", "Clara", "Martin", "Helen", "Adam", "Robert", "Lisa", "Daniel", "Victor", "Felix",
)  # fmt: skip
NAMES_EN_UNSEEN = (
    "Zoltan", "Ingrid", "Kwame", "Yusuf", "Freya", "Tobias", "Beatrix", "Mikhail", "Priya", "Ximena", "Quentin",
    "Ottilie", "Rashid", "Wilhelmina", "Ezekiel", "Saoirse",
)  # fmt: skip
CITIES_EN = ("London", "Paris", "Boston", "Rome", "Dublin", "Berlin", "Madrid", "Vienna")
CITIES_EN_UNSEEN = ("Tampere", "Zagreb", "Kyoto", "Wroclaw", "Quito", "Nairobi")

SURNAMES_ZH = ("王", "李", "张", "刘", "陈", "杨", "赵", "黄")
GIVEN_ZH = ("伟", "娜", "敏", "静", "强", "磊", "军", "洋")
NAMES_ZH_UNSEEN = ("欧阳翠", "慕容枫", "司徒鹏", "诸葛薇", "上官瑞", "夏侯岚", "尉迟宁", "端木琪")
CITIES_ZH = ("北京", "上海", "广州", "深圳", "杭州", "成都")
CITIES_ZH_UNSEEN = ("哈尔滨", "秦皇岛", "洛阳")

WEEKDAYS_EN = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
WEEKDAYS_ZH = ("周一", "周二", "周三", "周四", "周五")


# Few numbers, each so frequent that the tokenizer makes it one token: a model of this size copies tokens, not digits.
AMOUNTS = tuple(
    f"{hundreds}{rest}" for hundreds in (12, 15, 18, 21, 24, 27, 31, 34, 36, 39) for rest in ("00", "50")
)
ACCOUNTS = tuple(f"{start}{last}" for start in (42, 47, 53, 58, 61, 69, 74, 86) for last in (1, 4, 6, 9))
NAMES_ZH = tuple(
    surname + GIVEN_ZH[(place + shift) % len(GIVEN_ZH)]
    for place, surname in enumerate(SURNAMES_ZH)
    for shift in (0, 3)
)


def long_tailed(random: Random, words: tuple[str, ...]) -> str:
    """Draw a word by Zipf's law over its place in `words`: the first is common, the last is rare."""
    return random.choices(words, weights=[1 / (place + 1) for place in range(len(words))])[0]
