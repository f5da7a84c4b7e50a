"""Examples for the two models of the business flow: what a user wants, and how content the user is.

The satisfaction labels follow a declared rule of this generator, they are no measurement of people: a contented customer
starts at 5 points, loses one for each failed turn before, one for a reply that doesn't help, one for an angry wording, and half
a point for every three turns; a friendly wording earns half a point. The sum is rounded and kept within 1 to 5.
"""

from random import Random

from scenarios.generator.dialogues import first_turn, summary_turn
from scenarios.generator.language import Exchange, Language

_OPENERS = {
    "en": ("", "", "", "Please help. ", "Hi, ", "Excuse me, ", "One more thing: ", "Hello. "),
    "zh": ("", "", "", "请问，", "你好，", "还有，", "麻烦您，", "我想问一下，"),
}
_OUT_OF_SCOPE = {
    "en": (
        "What is the weather like tomorrow?", "Tell me a joke.", "Who won the football match?", "How do I bake bread?",
        "Sing a song for me.", "Which film do you like?", "Where can I buy shoes?", "Is it going to rain?",
        "How tall is the tower?", "What do cats eat?", "Write a poem about the sea.", "Who wrote this book?",
        "How far away is the moon?", "What is your favourite colour?", "Play some music.", "When does the train leave?",
        "How do I learn French?", "Recommend a restaurant.", "What time is it in Tokyo?", "Do you like dogs?",
    ),
    "zh": (
        "明天天气怎么样？", "讲个笑话吧。", "足球比赛谁赢了？", "面包怎么做？", "给我唱首歌。", "你喜欢什么电影？", "哪里买鞋子好？",
        "会下雨吗？", "塔有多高？", "猫吃什么？", "写一首关于大海的诗。", "这本书是谁写的？", "月亮离我们多远？", "你喜欢什么颜色？",
        "放点音乐。", "火车几点出发？", "怎么学法语？", "推荐一家饭店。", "东京现在几点？", "你喜欢狗吗？",
    ),
}  # fmt: skip
_UNHELPFUL = {
    "en": (
        "I did not understand you.",
        "I can not help with that.",
        "Please try again later.",
        "I do not know that.",
    ),
    "zh": ("我没有听懂。", "这个我帮不了您。", "请以后再试。", "我不知道这个。"),
}
_ANGRY = {
    "en": ("This is useless! ", "I am really annoyed. ", "For the third time: ", "That is wrong again! "),
    "zh": ("这没有用！", "我真的很生气。", "我说了三次了：", "又错了！"),
}
_FRIENDLY = {
    "en": ("Thanks a lot. ", "That is great. ", "You are very kind. ", "Perfect, thank you. "),
    "zh": ("非常感谢。", "太好了。", "您真好。", "很好，谢谢。"),
}


def intent_examples(random: Random, language: Language, per_wording: int) -> list[dict[str, str]]:
    """Labelled user texts; every wording occurs `per_wording` times with other facts and openers, doubles left out."""
    examples: dict[str, str] = {}
    for exchange in _all_exchanges(language):
        for user in exchange.users:
            for _ in range(per_wording):
                opener = random.choice(_OPENERS[language.locale])
                text = opener + user.format(**language.facts(random, held_out=False))
                examples.setdefault(text, exchange.intent)
    for text in _OUT_OF_SCOPE[language.locale]:
        for opener in dict.fromkeys(_OPENERS[language.locale]):
            examples.setdefault(opener + text, "out_of_scope")
    return [{"text": text, "intent": intent, "locale": language.locale} for text, intent in examples.items()]


def satisfaction_examples(random: Random, language: Language, count: int) -> list[dict[str, str]]:
    """Turns with the satisfaction that the rule of this module gives them."""
    exchanges = _all_exchanges(language)
    rows = []
    for _ in range(count):
        exchange = random.choice(exchanges)
        facts = language.facts(random, held_out=False)
        mood = random.choices(("plain", "angry", "friendly"), weights=(3, 2, 2))[0]
        helpful = random.random() < 0.65
        turn_index = random.randint(0, 7)
        failed_turns = random.choices((0, 1, 2, 3), weights=(6, 2, 1, 1))[0] if turn_index else 0
        prefix = {"plain": ("",), "angry": _ANGRY[language.locale], "friendly": _FRIENDLY[language.locale]}[
            mood
        ]
        user_text = random.choice(prefix) + random.choice(exchange.users).format(**facts)
        reply = exchange.reply.format(**facts) if helpful else random.choice(_UNHELPFUL[language.locale])
        points = (
            5.0
            - failed_turns
            - (not helpful)
            - (mood == "angry")
            + 0.5 * (mood == "friendly")
            - turn_index // 3 * 0.5
        )
        rows.append(
            {
                "user_text": user_text,
                "reply": reply,
                "turn_index": str(turn_index),
                "failed_turns": str(min(failed_turns, turn_index)),
                "satisfaction": str(max(1, min(5, round(points)))),
            }
        )
    return rows


def _all_exchanges(language: Language) -> list[Exchange]:
    plain = [
        language.greeting,
        language.thanks,
        language.balance,
        *language.questions,
        *language.handover,
        *(topic.opening for topic in language.topics),
        *(summary_turn(language, topic).exchange for topic in language.topics),
    ]
    first_turns = [first_turn(language, exchange) for exchange in plain if exchange in language.questions]
    first_turns += [first_turn(language, topic.opening) for topic in language.topics]
    return [*plain, *first_turns]
