"""Between the wire's types and ours. The core never sees protobuf."""

from evalkit.wire import sandbox_pb2 as wire
from sandbox.domain import FinishReason, Sampling, SessionState, TurnInput, TurnPiece, TurnReply
from sandbox.limits import Limits
from sandbox.sessions import Session

_FINISH_REASONS = {
    FinishReason.END: wire.END,
    FinishReason.STOP_STRING: wire.STOP_STRING,
    FinishReason.LENGTH: wire.LENGTH,
    FinishReason.CANCELLED: wire.CANCELLED,
    FinishReason.HANDED_OVER: wire.HANDED_OVER,
}
_STATES = {
    SessionState.OPEN: wire.OPEN,
    SessionState.HANDED_OVER: wire.SESSION_HANDED_OVER,
    SessionState.CLOSED: wire.CLOSED,
}


def turn_from_wire(request: wire.TurnRequest, limits: Limits) -> TurnInput:
    """A turn request; 0 means "not set" on the wire and becomes the default here."""
    sampling = request.sampling
    return TurnInput(
        session_id=request.session_id,
        turn_id=request.turn_id,
        user_text=request.user_text,
        sampling=Sampling(
            max_new_tokens=sampling.max_new_tokens or limits.default_turn_tokens,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p or 1.0,
            seed=sampling.seed,
            stop=tuple(sampling.stop),
        ),
    )


def state_to_wire(state: SessionState) -> wire.SessionState:
    """A session's state."""
    return _STATES[state]


def reply_to_wire(reply: TurnReply) -> wire.TurnReply:
    """A finished turn; predictions that weren't made stay unset."""
    usage, timings = reply.usage, reply.timings
    message = wire.TurnReply(
        session_id=reply.session_id,
        turn_id=reply.turn_id,
        turn_index=reply.turn_index,
        text=reply.text,
        token_ids=reply.token_ids,
        finish_reason=_FINISH_REASONS[reply.finish_reason],
        usage=wire.Usage(
            prompt_tokens=usage.prompt_tokens,
            reused_tokens=usage.reused_tokens,
            generated_tokens=usage.generated_tokens,
            dropped_turns=usage.dropped_turns,
        ),
        timings=wire.Timings(
            queue_ns=timings.queue_ns,
            prefill_ns=timings.prefill_ns,
            first_token_ns=timings.first_token_ns,
            decode_ns=timings.decode_ns,
            intent_ns=timings.intent_ns,
            handover_ns=timings.handover_ns,
            satisfaction_ns=timings.satisfaction_ns,
            total_ns=timings.total_ns,
        ),
        state=state_to_wire(reply.state),
    )
    if (intent := reply.intent) is not None:
        message.intent.CopyFrom(
            wire.Intent(label=intent.label, probability=intent.probability, out_of_scope=intent.out_of_scope)
        )
    if (handover := reply.handover) is not None:
        message.handover.CopyFrom(
            wire.Handover(decided=handover.decided, reason=handover.reason, score=handover.score)
        )
    if (guess := reply.satisfaction) is not None:
        message.satisfaction.CopyFrom(
            wire.Satisfaction(score=guess.score, probability_dissatisfied=guess.probability_dissatisfied)
        )
    return message


def piece_to_wire(piece: TurnPiece) -> wire.TurnChunk:
    """A piece of a streamed turn."""
    chunk = wire.TurnChunk(text=piece.text, token_ids=piece.token_ids)
    if piece.reply is not None:
        chunk.reply.CopyFrom(reply_to_wire(piece.reply))
    return chunk


def transcript_to_wire(session: Session, model_digest: str) -> wire.SessionTranscript:
    """All finished turns of a session."""
    turns = [
        wire.TranscriptTurn(turn_id=turn.turn_id, user_text=turn.user_text, reply=reply_to_wire(turn.reply))
        for turn in session.turns
    ]
    return wire.SessionTranscript(
        session_id=session.session_id,
        state=state_to_wire(session.state),
        turns=turns,
        model_digest=model_digest,
    )
