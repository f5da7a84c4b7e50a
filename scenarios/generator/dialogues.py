"""Conversations put together from a language's exchanges: for training as messages, for evaluation as dialogue files."""

from dataclasses import dataclass
from random import Random
from typing import Any

from scenarios.generator.language import Exchange, Facts, Language, Topic

# Short conversations are most of the training: copying is learned where little stands between a fact and its copy, and
# carries over to the long ones.
_KINDS = {"business": 34, "opening": 18, "single": 10, "handover": 4, "read_back": 34}


@dataclass(frozen=True)
class Turn:
    """One exchange within a conversation, with the facts that its reply has to recall."""

    exchange: Exchange
    recalls: tuple[str, ...] = ()


def training_messages(random: Random, language: Language) -> list[dict[str, str]]:
    """One training conversation: most span several turns, some are a single turn, a few end in a hand-over."""
    facts = language.facts(random, held_out=False)
    kind = random.choices(tuple(_KINDS), weights=tuple(_KINDS.values()))[0]
    if kind == "read_back":
        return _read_back(random, language, facts)
    if kind == "single":
        turns = [Turn(first_turn(language, random.choice(_single_turn_exchanges(language))))]
    elif kind == "opening":
        turns = [Turn(language.greeting), Turn(_topic(random, language).opening)]
    elif kind == "handover":
        turns = [
            Turn(language.greeting),
            Turn(random.choice(language.questions)),
            Turn(random.choice(language.handover)),
        ]
    else:
        turns = _training_business(random, language)
    messages = []
    for turn in turns:
        user = random.choice(turn.exchange.users).format(**facts)
        messages.append({"role": "user", "content": user})
        messages.append({"role": "assistant", "content": turn.exchange.reply.format(**facts)})
    return messages


def _read_back(random: Random, language: Language, facts: Facts) -> list[dict[str, str]]:
    """A customer lists data, in any order, the agent reads it back in a fixed one: nearly every word is copied."""
    before_user, before_reply, separator, stop = language.read_back
    listed = [item.format(**facts) for item in language.listed]
    told = random.sample(listed, random.randint(2, len(listed)))
    repeated = [item for item in listed if item in told]
    return [
        {"role": "user", "content": before_user + separator.join(told) + stop},
        {"role": "assistant", "content": before_reply + separator.join(repeated) + stop},
    ]


def _training_business(random: Random, language: Language) -> list[Turn]:
    topic = _topic(random, language)
    questions = [Turn(question) for question in random.sample(language.questions, random.randint(0, 3))]
    turns = [Turn(language.greeting), Turn(topic.opening), *questions, summary_turn(language, topic)]
    if random.random() < 0.1:
        turns.insert(0, Turn(language.balance))
    if random.random() < 0.3:
        turns.append(Turn(language.thanks))
    return turns


def _topic(random: Random, language: Language) -> Topic:
    """A topic for training: those about a city come more often, for nothing else teaches cities."""
    weights = [2 if "city" in topic.recalls else 1 for topic in language.topics]
    return random.choices(language.topics, weights=weights)[0]


def summary_turn(language: Language, topic: Topic) -> Turn:
    """The question for facts of earlier turns, in the topic's own wordings and in those that fit every topic."""
    summary = topic.summary
    users = (*summary.users, *language.summary_any)
    return Turn(
        Exchange(summary.name, summary.intent, users, summary.reply, summary.evidence), recalls=topic.recalls
    )


def first_turn(language: Language, exchange: Exchange) -> Exchange:
    """The exchange as the first turn of a conversation: the user names the account and asks at once."""
    users = tuple(language.first_turn + user for user in exchange.users)
    return Exchange(exchange.name, exchange.intent, users, exchange.reply, exchange.evidence)


def _single_turn_exchanges(language: Language) -> list[Exchange]:
    return [*language.questions, *(topic.opening for topic in language.topics)]


def evaluation_files(
    random: Random, language: Language, *, per_topic: int, questions: int, single: int, per_handover: int
) -> dict[str, Any]:
    """The dialogue files of one language: file name without suffix → content.

    Args:
        random: source of facts and questions.
        language: the language.
        per_topic: dialogues of each topic; they ask for facts given turns ago.
        questions: other questions between the facts and the turn that asks for them.
        single: dialogues of one turn; the exchanges take turns.
        per_handover: dialogues of each reason to hand over.
    """
    locale = language.locale
    files: dict[str, list[dict[str, Any]]] = {}
    for topic in language.topics:
        for number in range(1, per_topic + 1):
            between = random.sample(language.questions, questions)
            turns = [
                Turn(language.greeting),
                Turn(topic.opening),
                *map(Turn, between),
                summary_turn(language, topic),
            ]
            files.setdefault(f"{topic.name}_{locale}", []).append(
                _dialogue(
                    random, language, f"{topic.name}_{locale}_{number:03}", ["multi_turn", topic.name], turns
                )
            )
    exchanges = _single_turn_exchanges(language)
    random.shuffle(exchanges)
    for number in range(1, single + 1):
        exchange = exchanges[(number - 1) % len(exchanges)]
        files.setdefault(f"single_turn_{locale}", []).append(
            _dialogue(
                random,
                language,
                f"single_turn_{locale}_{number:03}",
                ["single_turn", exchange.name],
                [Turn(first_turn(language, exchange))],
            )
        )
    for request in language.handover:
        for number in range(1, per_handover + 1):
            turns = [Turn(language.greeting), Turn(random.choice(language.questions)), Turn(request)]
            files.setdefault(f"handover_{locale}", []).append(
                _dialogue(
                    random,
                    language,
                    f"{request.name}_{locale}_{number:03}",
                    ["handover", request.name],
                    turns,
                    handover=True,
                )
            )
    return {name: {"dialogues": dialogues} for name, dialogues in files.items()}


def _dialogue(
    random: Random,
    language: Language,
    dialogue_id: str,
    tags: list[str],
    turns: list[Turn],
    *,
    handover: bool = False,
) -> dict[str, Any]:
    facts = language.facts(random, held_out=True)
    last = len(turns) - 1
    stated = _stated(facts, turns)
    written = [_turn(random, turn, handover=handover and index == last) for index, turn in enumerate(turns)]
    recalled = [fact for turn in turns for fact in turn.recalls]
    return {
        "id": dialogue_id,
        "locale": language.locale,
        "persona": language.persona.format(**facts),
        "facts": stated,
        "ledger": {name: pattern for name, pattern in language.ledger.items() if name in stated},
        "tags": [language.locale, *tags],
        "turns": written,
        "never": list(language.never),
        "end_state": {"handed_over": handover} | ({"stated": recalled} if recalled else {}),
    }


def _turn(random: Random, turn: Turn, *, handover: bool) -> dict[str, Any]:
    exchange = turn.exchange
    expect: dict[str, Any] = {
        "intent": exchange.intent,
        "handover": {"required": True} if handover else {"forbidden": True},
    }
    if exchange.evidence:
        expect["contains"] = list(exchange.evidence)
    if turn.recalls:
        expect["recalls"] = list(turn.recalls)
    return {
        "user": random.sample(exchange.users, len(exchange.users)),
        "gold": exchange.reply,
        "expect": expect,
    }


def _stated(facts: Facts, turns: list[Turn]) -> Facts:
    said = " ".join(turn.exchange.users[0] for turn in turns)
    return {name: value for name, value in facts.items() if "{" + name + "}" in said}
