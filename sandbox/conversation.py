"""A turn from beginning to end: intent, hand-over, generation, satisfaction, and what the session remembers of it.

A turn is stored in one go when its reply is complete. Whatever stops it before (cancel, deadline, dead engine) leaves
the session as it was, so that the same turn_id can be sent again.
"""

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from evalkit.chat import ChatRenderer
from sandbox.admission import Admission, Place
from sandbox.business.features import RatedTurn
from sandbox.business.flow import NOTHING_READ, BatchedFlow, UserReading
from sandbox.domain import (
    FinishReason,
    SatisfactionGuess,
    SessionState,
    Timings,
    TurnInput,
    TurnPiece,
    TurnReply,
    Usage,
)
from sandbox.engine.requests import Engine, GenerationEnd, GenerationRequest
from sandbox.limits import Limits
from sandbox.prompts import Prompt, Prompts
from sandbox.sessions import Exchange, Session, SessionStore

# The predicted satisfaction, and the nanoseconds it took.
Rating = tuple[SatisfactionGuess | None, int]


@dataclass(frozen=True)
class _Generated:
    text: str
    token_ids: tuple[int, ...]
    first_token_ns: int
    end: GenerationEnd


class Conversations:
    """Runs turns of sessions."""

    def __init__(
        self,
        store: SessionStore,
        engine: Engine,
        renderer: ChatRenderer | None,
        flow: BatchedFlow | None,
        limits: Limits,
        admission: Admission | None = None,
    ) -> None:
        """Put the parts together.

        Args:
            store: the sessions.
            engine: generates replies.
            renderer: turns messages into token ids; None for an engine that is asked with messages.
            flow: the business flow, or None.
            limits: bounds.
            admission: says which turns are taken; made from the limits if None.
        """
        self._store = store
        self._engine = engine
        self._prompts = Prompts(renderer, limits)
        self._flow = flow
        self._limits = limits
        self._admission = admission or Admission(engine, limits.max_waiting_turns)

    async def turn(
        self, turn: TurnInput, owner: str = "", remaining_s: float | None = None
    ) -> AsyncGenerator[TurnPiece, None]:
        """Run one turn and yield its reply piece by piece; the last piece carries the whole reply.

        Args:
            turn: what the caller asks for.
            owner: whose sessions the caller may use, see Session.owner.
            remaining_s: until the caller's deadline; None without one.

        Raises:
            SandboxError: whatever stands in the way, see sandbox.errors; the session is then as before.
        """
        arrived_ns = time.perf_counter_ns()
        self._limits.check_id("turn_id", turn.turn_id)
        session = self._store.find(turn.session_id, owner)
        stored = session.stored_reply(turn)
        if stored is not None:
            yield TurnPiece(stored.text, stored.token_ids, stored, repeated=True)
            return
        with session.lock():
            self._store.require_open(session)
            self._limits.check_user_text(turn.user_text)
            self._limits.check_sampling(turn.sampling)
            with self._admission.admit(remaining_s) as place:
                reading = await self._read(session, turn.user_text)
                if reading.handover is not None and reading.handover.decided:
                    yield await self._hand_over(session, turn, reading, arrived_ns)
                    return
                async with aclosing(self._answer(session, turn, reading, arrived_ns, place)) as pieces:
                    async for piece in pieces:
                        yield piece

    async def _answer(
        self, session: Session, turn: TurnInput, reading: UserReading, arrived_ns: int, place: Place
    ) -> AsyncGenerator[TurnPiece, None]:
        prompt = self._prompts.next_prompt(session, turn.user_text, turn.sampling.max_new_tokens)
        request = GenerationRequest(
            session.cache_key,
            prompt.ids,
            turn.sampling,
            session.tenant,
            session.shared_tokens,
            prompt.messages,
        )
        text: list[str] = []
        ids: list[int] = []
        first_token_ns = 0
        async with self._engine.generate(request) as pieces:
            async for piece in pieces:
                if not first_token_ns and (piece.token_ids or piece.text):
                    first_token_ns = time.perf_counter_ns() - arrived_ns
                    place.first_token()
                text.append(piece.text)
                ids.extend(piece.token_ids)
                if piece.end is None:
                    yield TurnPiece(piece.text, piece.token_ids)
                    continue
                place.ended(piece.end.prefill_ns)
                generated = _Generated("".join(text), tuple(ids), first_token_ns, piece.end)
                rating = await self._rate(session, turn, reading, generated.text)
                reply = self._store_answer(session, turn, reading, rating, prompt, generated, arrived_ns)
                yield TurnPiece(piece.text, piece.token_ids, reply)

    def _store_answer(
        self,
        session: Session,
        turn: TurnInput,
        reading: UserReading,
        rating: Rating,
        prompt: Prompt,
        generated: _Generated,
        arrived_ns: int,
    ) -> TurnReply:
        end = generated.end
        session.exchanges.append(Exchange(turn.user_text, generated.token_ids, generated.text))
        session.prompt_ids = [*prompt.ids, *generated.token_ids] if prompt.ids else []
        session.first_exchange = prompt.first_exchange + end.dropped_turns
        usage = Usage(
            prompt_tokens=len(prompt.ids) if prompt.ids else end.prompt_tokens,
            reused_tokens=end.reused_tokens,
            generated_tokens=len(generated.token_ids) if prompt.ids else end.generated_tokens,
            dropped_turns=session.first_exchange,
        )
        timings = Timings(
            queue_ns=end.queue_ns,
            prefill_ns=end.prefill_ns,
            first_token_ns=generated.first_token_ns,
            decode_ns=end.decode_ns,
        )
        return self._store_reply(
            session,
            turn,
            reading,
            rating,
            generated.text,
            generated.token_ids,
            end.finish_reason,
            usage,
            timings,
            arrived_ns,
        )

    async def _hand_over(
        self, session: Session, turn: TurnInput, reading: UserReading, arrived_ns: int
    ) -> TurnPiece:
        text = reading.handover_reply
        rating = await self._rate(session, turn, reading, text)
        # From here on nothing waits: a cancel finds the turn either undone or stored.
        session.state = SessionState.HANDED_OVER
        self._engine.release(session.cache_key)
        timings = Timings(first_token_ns=time.perf_counter_ns() - arrived_ns)
        reply = self._store_reply(
            session, turn, reading, rating, text, (), FinishReason.HANDED_OVER, Usage(), timings, arrived_ns
        )
        return TurnPiece(text, (), reply)

    def _store_reply(
        self,
        session: Session,
        turn: TurnInput,
        reading: UserReading,
        rating: Rating,
        text: str,
        token_ids: tuple[int, ...],
        finish_reason: FinishReason,
        usage: Usage,
        timings: Timings,
        arrived_ns: int,
    ) -> TurnReply:
        satisfaction, satisfaction_ns = rating
        reply = TurnReply(
            session_id=session.session_id,
            turn_id=turn.turn_id or secrets.token_hex(16),
            turn_index=len(session.turns),
            text=text,
            token_ids=token_ids,
            finish_reason=finish_reason,
            intent=reading.intent,
            handover=reading.handover,
            satisfaction=satisfaction,
            usage=usage,
            timings=Timings(
                queue_ns=timings.queue_ns,
                prefill_ns=timings.prefill_ns,
                first_token_ns=timings.first_token_ns,
                decode_ns=timings.decode_ns,
                intent_ns=reading.intent_ns,
                handover_ns=reading.handover_ns,
                satisfaction_ns=satisfaction_ns,
                total_ns=time.perf_counter_ns() - arrived_ns,
            ),
            state=session.state,
        )
        session.failed_turns = reading.failed_turns
        session.last_intent = reading.intent.label if reading.intent else None
        session.last_reply_empty = not text.strip()
        session.store(turn, reply)
        self._store.touch(session)
        return reply

    async def _read(self, session: Session, user_text: str) -> UserReading:
        if self._flow is None:
            return NOTHING_READ
        return await self._flow.read(
            user_text, session.locale, session.failed_turns, session.last_intent, session.last_reply_empty
        )

    async def _rate(self, session: Session, turn: TurnInput, reading: UserReading, text: str) -> Rating:
        if self._flow is None:
            return None, 0
        return await self._flow.rate(
            RatedTurn(turn.user_text, text, len(session.turns), reading.failed_turns)
        )
