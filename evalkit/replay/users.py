"""Users: who says what in each turn of a trial. A script, a rule-driven state machine, or a served model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from evalkit.scenario.dialogue import Dialogue
from evalkit.scenario.expectations import Reply, check_turn
from evalkit.scenario.ledger import check_ledger
from evalkit.scenario.user_schema import ModelUser, RuleUser
from evalkit.scenario.variation import Variation, joined, user_texts

GAVE_UP = "the user gave up after {count} replies in a row that didn't help"


class UserError(Exception):
    """The user can't go on, through no fault of the model under test."""


class SimulatedUser(Protocol):
    """Says one text a turn, after it has heard the reply to the one before."""

    def say(self, index: int, replies: Sequence[Reply]) -> str | None:
        """What the user says in turn `index` (from 0), given the replies so far; None: the user gave up.

        Raises:
            UserError: the user itself failed.
        """
        ...


@dataclass(frozen=True)
class ScriptedUser:
    """Says the texts of the script; a recorded user is one."""

    texts: Sequence[str]

    def say(self, index: int, replies: Sequence[Reply]) -> str | None:
        """See `SimulatedUser`."""
        return self.texts[index]


@dataclass(frozen=True)
class RuleDrivenUser:
    """A deterministic state machine over the dialogue's facts, see `RuleUser`."""

    dialogue: Dialogue
    rules: RuleUser
    texts: Sequence[str]

    def say(self, index: int, replies: Sequence[Reply]) -> str | None:
        """See `SimulatedUser`."""
        if self._gone(replies):
            return None
        text = self.texts[index]
        for sentence in reversed(self._reactions(index, replies)):
            text = joined(sentence, text, self.dialogue.locale)
        return text

    def _gone(self, replies: Sequence[Reply]) -> bool:
        patience = self.rules.gives_up_after
        if patience is None or len(replies) < patience:
            return False
        first = len(replies) - patience
        return all(self._annoying(first + number, reply) for number, reply in enumerate(replies[first:]))

    def _annoying(self, index: int, reply: Reply) -> bool:
        # How long a reply took depends on the machine; what the user says mustn't.
        return any(
            not result.passed and result.kind != "max_ms"
            for result in check_turn(self.dialogue, index, reply)
        )

    def _reactions(self, index: int, replies: Sequence[Reply]) -> list[str]:
        if not replies:
            return []
        found = []
        if self.rules.correction is not None:
            wrong = {
                check.name
                for check in check_ledger(self.dialogue, [reply.text for reply in replies])[-1]
                if check.got is not None and check.outcome != "honoured"
            }
            found += [
                self.rules.correction.replace("{fact}", name).replace(
                    "{value}", self.dialogue.fact(name, index - 1)
                )
                for name in self.rules.corrects
                if name in wrong
            ]
        for answer in self.rules.answers:
            if self.dialogue.fill_pattern(answer.asks, index - 1).find(replies[-1].text) is not None:
                found.append(self.dialogue.fill(answer.say, index))
        return found


def make_user(
    dialogue: Dialogue, run_seed: int, trial: int, variation: Sequence[Variation], seed: int
) -> SimulatedUser:
    """The user of one trial.

    Args:
        dialogue: as played in this trial (see `played`).
        run_seed, trial, variation: determine the texts.
        seed: of the trial, for a model.
    """
    texts = user_texts(dialogue, run_seed, trial, variation)
    if isinstance(dialogue.user, RuleUser):
        return RuleDrivenUser(dialogue, dialogue.user, texts)
    if isinstance(dialogue.user, ModelUser):
        from evalkit.replay.model_user import ModelDrivenUser

        return ModelDrivenUser(dialogue, dialogue.user, texts, seed)
    return ScriptedUser(texts)
