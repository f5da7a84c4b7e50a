"""The reports' phrases in Chinese, English to Chinese; see `evalkit.report.language` for fields."""

from evalkit.report.chinese.actions import ACTIONS
from evalkit.report.chinese.gate import GATE
from evalkit.report.chinese.page import PAGE
from evalkit.report.chinese.reasons import REASONS
from evalkit.report.chinese.sentences import SENTENCES

PHRASES: dict[str, str] = {**PAGE, **SENTENCES, **GATE, **ACTIONS, **REASONS}

__all__ = ["PHRASES"]
