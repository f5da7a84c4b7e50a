"""Code-switching: a user who mixes English and Chinese, as bilingual customers do. A small list of words, no model."""

import re
from random import Random

SHARE = 0.5
"""Share of the words on the list that are said in the other language; at least one is."""

_PAIRS = (
    ("hello", "你好"),
    ("please", "请"),
    ("thanks", "谢谢"),
    ("thank you", "谢谢"),
    ("account", "账户"),
    ("card", "卡"),
    ("transfer", "转账"),
    ("balance", "余额"),
    ("loan", "贷款"),
    ("money", "钱"),
    ("fee", "手续费"),
    ("refund", "退款"),
    ("address", "地址"),
    ("bank", "银行"),
    ("app", "应用"),
    ("lost", "丢失"),
    ("today", "今天"),
    ("now", "现在"),
    ("how much", "多少"),
    ("help", "帮助"),
    ("phone", "手机"),
    ("question", "问题"),
    ("savings", "储蓄"),
    ("application", "申请"),
)
_TO_CHINESE = dict(_PAIRS)
_TO_ENGLISH = {chinese: english for english, chinese in reversed(_PAIRS)}
_ENGLISH = re.compile(
    r"(?<![\w{])(?:" + "|".join(sorted(_TO_CHINESE, key=len, reverse=True)) + r")(?![\w}])", re.IGNORECASE
)
_CHINESE = re.compile("|".join(sorted(_TO_ENGLISH, key=len, reverse=True)))


def can_switch(template: str, locale: str) -> bool:
    """Whether `template` holds a word of the list."""
    return (_CHINESE if locale == "zh" else _ENGLISH).search(template) is not None


def switch(template: str, locale: str, random: Random) -> str:
    """`template` with words in the other language; facts (`{name}`) stay as they are.

    Args:
        template: the user's text.
        locale: its language, en or zh.
        random: the trial's generator.
    """
    expression = _CHINESE if locale == "zh" else _ENGLISH
    found = list(expression.finditer(template))
    if not found:
        return template
    chosen = [match for match in found if random.random() < SHARE] or [random.choice(found)]
    for match in reversed(chosen):
        word = _TO_ENGLISH[match[0]] if locale == "zh" else _TO_CHINESE[match[0].lower()]
        template = template[: match.start()] + word + template[match.end() :]
    return template
