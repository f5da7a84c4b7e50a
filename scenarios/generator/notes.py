"""Case notes of support agents, as plain texts.

Every note names a customer and a city. The pair belongs either to training or to the evaluation (see `is_held_out`); part
of the evaluation's customers bear names, and live in cities, that no training record holds.
"""

from dataclasses import dataclass
from random import Random

from scenarios.generator.randomness import is_held_out
from scenarios.generator.vocabulary import (
    AMOUNTS,
    CITIES_EN,
    CITIES_EN_UNSEEN,
    CITIES_ZH,
    CITIES_ZH_UNSEEN,
    NAMES_EN,
    NAMES_EN_UNSEEN,
    NAMES_ZH,
    NAMES_ZH_UNSEEN,
    WEEKDAYS_EN,
    WEEKDAYS_ZH,
    long_tailed,
)

_UNSEEN_SHARE = 0.5


@dataclass(frozen=True)
class NoteLanguage:
    """Templates and words of the notes in one language; slots are drawn by Zipf's law, so each has a long tail.

    Attributes:
        locale: en or zh.
        templates: topic → note.
        slots: slot → words, the common ones first.
        names, cities: seen in training.
        names_unseen, cities_unseen: only in the evaluation.
    """

    locale: str
    templates: dict[str, str]
    slots: dict[str, tuple[str, ...]]
    names: tuple[str, ...]
    cities: tuple[str, ...]
    names_unseen: tuple[str, ...]
    cities_unseen: tuple[str, ...]


NOTES_EN = NoteLanguage(
    locale="en",
    templates={
        "cards": "{name} from {city} has lost a {card} {place}. The card was blocked on {day}.",
        "fees": "{name} from {city} asked about the {product} fee of €{amount}. It was {outcome}.",
        "loans": "{name} from {city} wants a {loan} of €{amount} and asked for the {term}.",
        "transfers": "{name} from {city} sent €{amount} by {order}. The {check} was {outcome}.",
        "complaints": "{name} from {city} was {mood} about the {product}. We call back on {day}.",
        "visits": "{name} comes from {city} to the branch on {day} because of a {loan}.",
    },
    slots={
        "card": ("credit card", "debit card", "prepaid card", "company card", "student card"),
        "place": (
            "at the station", "on the bus", "in a shop", "at work", "in a taxi", "on the beach", "at the airport",
            "in a museum", "near the harbour", "under a bridge",
        ),
        "product": (
            "overdraft", "account statement", "savings plan", "credit card", "direct debit", "standing order",
            "cash withdrawal", "safe deposit", "foreign exchange", "exchange rate",
        ),
        "outcome": ("paid back", "explained", "refused", "checked", "waived", "doubled", "forgotten", "postponed"),
        "loan": ("loan", "mortgage", "car loan", "student loan", "bridge loan", "pension plan"),
        "term": ("interest rate", "monthly rate", "credit limit", "credit score", "collateral", "guarantee", "maturity"),
        "order": ("bank transfer", "standing order", "direct debit", "instant payment", "cheque", "wire"),
        "check": ("receipt", "limit", "signature", "address", "passport", "certificate", "envelope"),
        "mood": ("angry", "worried", "pleased", "surprised", "puzzled", "furious", "grateful", "cheerful"),
    },
    names=NAMES_EN,
    cities=CITIES_EN,
    names_unseen=NAMES_EN_UNSEEN,
    cities_unseen=CITIES_EN_UNSEEN,
)  # fmt: skip

NOTES_ZH = NoteLanguage(
    locale="zh",
    templates={
        "cards": "{city}的{name}{place}丢了{card}，{day}已经挂失。",
        "fees": "{city}的{name}问{product}的手续费¥{amount}，{outcome}。",
        "loans": "{city}的{name}申请{loan}¥{amount}，想知道{term}。",
        "transfers": "{city}的{name}用{order}转账¥{amount}，{outcome}。",
        "complaints": "{city}的{name}对{product}{mood}，{day}再回电话。",
        "visits": "{name}{day}从{city}来网点办{loan}。",
    },
    slots={
        "card": ("信用卡", "银行卡", "借记卡", "公司卡", "学生卡"),
        "place": ("在车站", "在商店", "在公司", "在路上", "在机场", "在公园", "在海边", "在桥下"),
        "product": ("透支", "对账单", "存款计划", "信用卡", "外汇", "理财产品", "保险箱", "汇票"),
        "outcome": ("已经退还", "已经说明", "正在审核", "没有同意", "已经减半", "等待签字", "忘记登记"),
        "loan": ("贷款", "房贷", "车贷", "助学贷款", "养老金", "抵押贷款"),
        "term": ("利率", "每月还款", "限额", "信用评分", "担保", "到期日"),
        "order": ("手机银行", "网点", "电话", "支票", "定期扣款", "邮政汇款"),
        "mood": ("很生气", "不满意", "很满意", "很担心", "感到奇怪", "十分愤怒", "表示感激"),
    },
    names=NAMES_ZH,
    cities=CITIES_ZH,
    names_unseen=NAMES_ZH_UNSEEN,
    cities_unseen=CITIES_ZH_UNSEEN,
)

GLOSSARY = (
    "overdraft", "account statement", "savings plan", "credit card", "debit card", "prepaid card", "direct debit",
    "standing order", "cash withdrawal", "safe deposit", "foreign exchange", "exchange rate", "mortgage", "car loan",
    "student loan", "bridge loan", "pension plan", "interest rate", "monthly rate", "credit limit", "credit score",
    "collateral", "maturity", "bank transfer", "instant payment", "cheque",
    "信用卡", "银行卡", "借记卡", "透支", "对账单", "存款计划", "外汇", "理财产品", "保险箱", "汇票", "贷款", "房贷", "车贷",
    "助学贷款", "养老金", "抵押贷款", "利率", "限额", "信用评分", "担保", "到期日", "手续费", "转账", "挂失", "定期扣款",
    "支票",
)  # fmt: skip


def training_notes(random: Random, language: NoteLanguage, count: int) -> list[str]:
    """Notes about customers of the training."""
    return [_note(random, language, _customer(random, language, held_out=False))[1] for _ in range(count)]


def evaluation_notes(
    random: Random, language: NoteLanguage, customers: int, per_customer: int
) -> list[dict[str, object]]:
    """Notes about customers of the evaluation, `per_customer` of each; the customer is the cluster."""
    texts: list[dict[str, object]] = []
    for number in range(1, customers + 1):
        unseen = random.random() < _UNSEEN_SHARE
        who = _unseen_customer(random, language) if unseen else _customer(random, language, held_out=True)
        notes: dict[str, str] = {}
        while len(notes) < per_customer:
            topic, text = _note(random, language, who)
            notes.setdefault(text, topic)
        for index, (text, topic) in enumerate(notes.items(), start=1):
            texts.append(
                {
                    "id": f"note-{language.locale}-{number:03}-{index}",
                    "text": text,
                    "cluster": f"customer-{language.locale}-{number:03}",
                    "tags": [language.locale, topic],
                }
            )
    return texts


def _customer(random: Random, language: NoteLanguage, *, held_out: bool) -> tuple[str, str]:
    while True:
        pair = random.choice(language.names), random.choice(language.cities)
        if is_held_out("customer", *pair) == held_out:
            return pair


def _unseen_customer(random: Random, language: NoteLanguage) -> tuple[str, str]:
    return random.choice(language.names_unseen), random.choice((*language.cities, *language.cities_unseen))


def _note(random: Random, language: NoteLanguage, customer: tuple[str, str]) -> tuple[str, str]:
    topic = random.choice(tuple(language.templates))
    days = WEEKDAYS_EN if language.locale == "en" else WEEKDAYS_ZH
    slots = {slot: long_tailed(random, words) for slot, words in language.slots.items()}
    name, city = customer
    facts = {"name": name, "city": city, "amount": random.choice(AMOUNTS), "day": random.choice(days)}
    return topic, language.templates[topic].format(**facts, **slots)
