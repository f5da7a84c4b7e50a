"""The business flow around the model: reads what the user says before it answers, rates the turn after it."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from evalkit.errors import InputError
from evalkit.scenario.flow import LoadedFlow, load_flow
from sandbox.business.batching import Batcher
from sandbox.business.features import RatedTurn
from sandbox.business.handover import HandoverRule, turn_failed
from sandbox.business.intent import IntentRecogniser
from sandbox.business.satisfaction import SatisfactionPredictor
from sandbox.domain import HandoverDecision, IntentGuess, SatisfactionGuess


@dataclass(frozen=True)
class UserReading:
    """What the flow makes of a user's turn before the model sees it.

    Attributes:
        intent, handover: None where the flow has no such part.
        failed_turns: turns in a row that failed the user, this one included.
        handover_reply: what to tell the user when the decision is to hand over.
        intent_ns, handover_ns: time taken.
    """

    intent: IntentGuess | None
    handover: HandoverDecision | None
    failed_turns: int
    handover_reply: str
    intent_ns: int
    handover_ns: int


NOTHING_READ = UserReading(None, None, 0, "", 0, 0)


@dataclass(frozen=True)
class BusinessFlow:
    """A loaded flow folder; parts that flow.yaml leaves out are None. Stateless: the session keeps the counters."""

    digest: str
    intent: IntentRecogniser | None
    handover: HandoverRule | None
    satisfaction: SatisfactionPredictor | None

    @classmethod
    def load(cls, folder: Path) -> "BusinessFlow":
        """Load flow.yaml and its artefacts.

        Raises:
            InputError: a broken flow.yaml, or an artefact that is missing, damaged or not trusted, or a card that doesn't
                name the artefact beside it.
        """
        loaded = load_flow(folder)
        _check_cards(loaded)
        intent, handover, satisfaction = loaded.flow.intent, loaded.flow.handover, loaded.flow.satisfaction
        return cls(
            digest=loaded.digest,
            intent=IntentRecogniser.load(folder / intent.model, intent.out_of_scope_below)
            if intent
            else None,
            handover=HandoverRule.from_policy(handover) if handover else None,
            satisfaction=SatisfactionPredictor.load(folder / satisfaction.model) if satisfaction else None,
        )

    def read(
        self, text: str, locale: str, failed_turns: int, last_intent: str | None, last_reply_empty: bool
    ) -> UserReading:
        """Recognise the intent and decide about the hand-over.

        Args:
            text: what the user says.
            locale: of the session.
            failed_turns, last_intent, last_reply_empty: of the session before this turn.
        """
        started_ns = time.perf_counter_ns()
        intent = self.intent.recognise(text) if self.intent else None
        intent_ns = time.perf_counter_ns() - started_ns
        return self.decide(text, intent, intent_ns, locale, failed_turns, last_intent, last_reply_empty)

    def decide(
        self,
        text: str,
        intent: IntentGuess | None,
        intent_ns: int,
        locale: str,
        failed_turns: int,
        last_intent: str | None,
        last_reply_empty: bool,
    ) -> UserReading:
        """`read` when the intent is known already, and the nanoseconds that took."""
        started_ns = time.perf_counter_ns()
        failed = turn_failed(intent, last_intent, text, last_reply_empty)
        failed_turns = failed_turns + 1 if failed else 0
        decision = self.handover.decide(text, intent, failed_turns) if self.handover else None
        reply = self.handover.reply(locale) if self.handover and decision and decision.decided else ""
        handover_ns = time.perf_counter_ns() - started_ns
        return UserReading(intent, decision, failed_turns, reply, intent_ns, handover_ns)

    def rate(self, turn: RatedTurn) -> tuple[SatisfactionGuess | None, int]:
        """The predicted satisfaction with a turn, and the nanoseconds it took."""
        started_ns = time.perf_counter_ns()
        guess = self.satisfaction.predict(turn) if self.satisfaction else None
        return guess, time.perf_counter_ns() - started_ns


def _check_cards(loaded: LoadedFlow) -> None:
    parts: tuple[Literal["intent", "satisfaction"], ...] = ("intent", "satisfaction")
    for part in parts:
        card = loaded.model_card(part)
        if card is not None and not card.get("artefact_sha256"):
            raise InputError(
                f"{loaded.path}: the model card of {part} doesn't name its artefact (artefact_sha256 is missing), so it may"
                f" be another's; train the artefact again with `sandbox fit {part}`, or remove the card"
            )


class BatchedFlow:
    """A flow for many sessions: intents and ratings of concurrent turns are predicted together.

    Results equal those of the flow alone to the bit. Times are what a turn waited, the predictions of others included.
    """

    def __init__(self, flow: BusinessFlow) -> None:
        """Put batchers in front of the flow's predictors."""
        self._flow = flow
        self.intents = Batcher(flow.intent.recognise_all, len) if flow.intent else None
        self.ratings = (
            Batcher(flow.satisfaction.predict_all, lambda turn: len(turn.user_text) + len(turn.reply))
            if flow.satisfaction
            else None
        )

    async def read(
        self, text: str, locale: str, failed_turns: int, last_intent: str | None, last_reply_empty: bool
    ) -> UserReading:
        """See `BusinessFlow.read`."""
        started_ns = time.perf_counter_ns()
        intent = await self.intents.predict(text) if self.intents else None
        intent_ns = time.perf_counter_ns() - started_ns
        return self._flow.decide(text, intent, intent_ns, locale, failed_turns, last_intent, last_reply_empty)

    async def rate(self, turn: RatedTurn) -> tuple[SatisfactionGuess | None, int]:
        """See `BusinessFlow.rate`."""
        started_ns = time.perf_counter_ns()
        guess = await self.ratings.predict(turn) if self.ratings else None
        return guess, time.perf_counter_ns() - started_ns
