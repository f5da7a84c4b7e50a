"""Words that fill the templates. The lists are short on purpose: a model of 0.4 M parameters has to learn them.

`*_UNSEEN` lists stand in held-out texts only; no training record holds them.
"""

from random import Random

from scenarios.generator.randomness import is_held_out

NAMES_EN = (
    "Maria", "Peter", "Anna", "Tom", "Laura", "David", "Sarah", "Paul", "Emma", "Mark", "Julia", "Simon",
    "Nina", "Oliver", "Clara", "Martin", "Helen", "Adam", "Eva", "Robert", "Lisa", "Daniel", "Rosa", "Victor",
    "Alice", "Bruno", "Diana", "Felix", "Grace", "Henry", "Irene", "Jack",
)  # fmt: skip
NAMES_EN_UNSEEN = (
    "Zoltan", "Ingrid", "Kwame", "Yusuf", "Freya", "Tobias", "Beatrix", "Mikhail", "Priya", "Ximena", "Quentin",
    "Ottilie", "Rashid", "Wilhelmina", "Ezekiel", "Saoirse",
)  # fmt: skip
CITIES_EN = ("London", "Paris", "Boston", "Rome", "Dublin", "Berlin", "Madrid", "Vienna", "Oslo", "Lisbon")
CITIES_EN_UNSEEN = ("Tampere", "Zagreb", "Kyoto", "Wroclaw", "Quito", "Nairobi")

SURNAMES_ZH = ("王", "李", "张", "刘", "陈", "杨", "赵", "黄")
GIVEN_ZH = ("伟", "娜", "敏", "静", "强", "磊", "军", "洋")
NAMES_ZH_UNSEEN = ("欧阳翠", "慕容枫", "司徒鹏", "诸葛薇", "上官瑞", "夏侯岚", "尉迟宁", "端木琪")
CITIES_ZH = ("北京", "上海", "广州", "深圳", "杭州", "南京", "成都", "武汉")
CITIES_ZH_UNSEEN = ("哈尔滨", "乌鲁木齐", "呼和浩特", "秦皇岛")

WEEKDAYS_EN = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
WEEKDAYS_ZH = ("周一", "周二", "周三", "周四", "周五")


def _distinct_digits(number: int) -> bool:
    return len(set(str(number))) == len(str(number))


# Digits within a number differ, so that "the digit after this one" names one digit: that is what a small model copies.
AMOUNTS = tuple(str(number) for number in range(105, 1000, 5) if _distinct_digits(number))
_ACCOUNTS = tuple(str(number) for number in range(1000, 10000) if _distinct_digits(number))
ACCOUNTS_TRAINING = tuple(account for account in _ACCOUNTS if not is_held_out("account", account))
ACCOUNTS_HELD_OUT = tuple(account for account in _ACCOUNTS if is_held_out("account", account))
NAMES_ZH = tuple(surname + given for surname in SURNAMES_ZH for given in GIVEN_ZH)[::2]


def long_tailed(random: Random, words: tuple[str, ...]) -> str:
    """Draw a word by Zipf's law over its place in `words`: the first is common, the last is rare."""
    return random.choices(words, weights=[1 / (place + 1) for place in range(len(words))])[0]
