"""When a person takes over from the model, decided before the model answers.

Four signals, and the strongest one counts: the user asks for it or complains (probability of the hand-over intents),
the user says a risk word, several turns in a row failed the user, or nobody can tell what the user wants (one minus the
probability of the best intent, where that is below the policy's `confidence_below`).

A turn fails the user, as far as it can be seen without a judge, when
- its intent is out of scope: the bot isn't made for what the user wants;
- or it repeats the intent of the turn before in words of complaint or denial ("no, that's wrong", "still", "还是不行"):
  the reply before didn't help;
- or the reply before was empty.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evalkit.scenario.flow import HandoverPolicy
from sandbox.domain import HandoverDecision, IntentGuess

_COMPLAINT_WORDS = (
    "no",
    "not",
    "never",
    "wrong",
    "incorrect",
    "still",
    "again",
    "already",
    "nothing",
    "useless",
)
_COMPLAINT = re.compile(rf"\b(?:{'|'.join(_COMPLAINT_WORDS)})\b|n['’]t\b|[不没错]|还是|又", re.IGNORECASE)


def turn_failed(
    intent: IntentGuess | None, last_intent: str | None, text: str, last_reply_empty: bool
) -> bool:
    """Whether this turn shows that the conversation is failing the user (see the module's text)."""
    if last_reply_empty:
        return True
    if intent is None:
        return False
    return intent.out_of_scope or (intent.label == last_intent and _COMPLAINT.search(text) is not None)


@dataclass(frozen=True)
class HandoverRule:
    """The policy, ready to apply. Words of every locale are looked for, since users mix languages."""

    intents: frozenset[str]
    words: Sequence[tuple[str, re.Pattern[str]]]
    after_failed_turns: int
    confidence_below: float | None
    threshold: float
    replies: Mapping[str, str]

    @classmethod
    def from_policy(cls, policy: HandoverPolicy) -> "HandoverRule":
        """Prepare a flow's policy."""
        words = [word for words in policy.words.values() for word in words]
        return cls(
            intents=frozenset(policy.intents),
            words=[(word, _pattern(word)) for word in words],
            after_failed_turns=policy.after_failed_turns,
            confidence_below=policy.confidence_below,
            threshold=policy.decided_from,
            replies={str(locale): reply for locale, reply in policy.reply.items()},
        )

    def decide(self, text: str, intent: IntentGuess | None, failed_turns: int) -> HandoverDecision:
        """Decide on one turn.

        Args:
            text: what the user said.
            intent: what the recogniser made of it.
            failed_turns: turns in a row that failed, this one included.
        """
        signals = [*self._intent_signal(intent), *self._word_signal(text), *self._doubt_signal(intent)]
        if failed_turns >= self.after_failed_turns:
            signals.append((1.0, f"failed_turns:{failed_turns}"))
        score, reason = max(signals, default=(0.0, ""), key=lambda signal: signal[0])
        decided = bool(signals) and score >= self.threshold
        return HandoverDecision(decided, reason if decided else "", score)

    def reply(self, locale: str) -> str:
        """What the user is told, in the session's language where the policy has it."""
        return self.replies.get(locale) or next(iter(self.replies.values()))

    def _intent_signal(self, intent: IntentGuess | None) -> list[tuple[float, str]]:
        if intent is None or not self.intents:
            return []
        score = min(1.0, sum(intent.probabilities.get(label, 0.0) for label in self.intents))
        strongest = max(sorted(self.intents), key=lambda label: intent.probabilities.get(label, 0.0))
        return [(score, f"intent:{strongest}")]

    def _doubt_signal(self, intent: IntentGuess | None) -> list[tuple[float, str]]:
        if intent is None or self.confidence_below is None or intent.probability >= self.confidence_below:
            return []
        return [(1.0 - intent.probability, f"confidence:{intent.probability:.2f}")]

    def _word_signal(self, text: str) -> list[tuple[float, str]]:
        text = unicodedata.normalize("NFKC", text)
        return next(([(1.0, f"word:{word}")] for word, pattern in self.words if pattern.search(text)), [])


def _pattern(word: str) -> re.Pattern[str]:
    # A Latin word must stand alone; Chinese is written without spaces, so its words are found anywhere.
    word = unicodedata.normalize("NFKC", word)
    start = r"\b" if word[:1].isascii() and word[:1].isalnum() else ""
    end = r"\b" if word[-1:].isascii() and word[-1:].isalnum() else ""
    return re.compile(start + re.escape(word) + end, re.IGNORECASE)
