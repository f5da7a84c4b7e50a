"""What the sandbox answers, as plain values. Wire types end here; the core never sees protobuf."""

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from evalkit.backends.base import DECLARED
from evalkit.errors import InputError
from evalkit.wire import sandbox_pb2 as pb


@dataclass(frozen=True)
class ServerInfo:
    """What the server says about itself; see DescribeReply in sandbox.proto."""

    model_digest: str
    declared_model: str
    engine: str
    flow_digest: str
    max_sessions: int
    max_context_tokens: int
    max_turn_tokens: int
    version: str

    @property
    def identity(self) -> str:
        """The model digest, or what the operator of a served model declares it to be; "" if neither is told."""
        if self.model_digest or not self.declared_model:
            return self.model_digest
        return DECLARED + self.declared_model


@dataclass(frozen=True)
class Sampling:
    """How a reply is generated.

    Attributes:
        max_new_tokens: at most; 0 leaves it to the server.
        temperature: 0 is greedy.
        seed: of the turn's random draws.
        top_k, top_p: draw from the most probable tokens only; 0 and 1 for all.
        stop: strings that end the reply.
    """

    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0
    top_k: int = 0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServerTimings:
    """Nanoseconds of one turn as the server measured them; see Timings in sandbox.proto."""

    queue_ns: int = 0
    prefill_ns: int = 0
    first_token_ns: int = 0
    decode_ns: int = 0
    intent_ns: int = 0
    handover_ns: int = 0
    satisfaction_ns: int = 0
    total_ns: int = 0


@dataclass(frozen=True)
class TurnReply:
    """One reply.

    Attributes:
        intent, handover, satisfaction and what belongs to them: None where no flow is loaded.
        prompt_tokens, reused_tokens, generated_tokens: None where the server doesn't know (a served model that doesn't
            tell them). `token_ids` is empty then too.
        state: OPEN, SESSION_HANDED_OVER or CLOSED.
        model_ns: prefill and decode on the server.
        first_token_ns: from the planned start to the first text, at the client.
        total_ns: from the planned start to the end of the stream, at the client.
        server: times measured there.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    intent: str | None
    handover: bool | None
    satisfaction: float | None
    prompt_tokens: int | None
    reused_tokens: int | None
    generated_tokens: int | None
    dropped_turns: int
    state: str
    model_ns: int
    first_token_ns: int
    total_ns: int
    turn_index: int = 0
    intent_probability: float | None = None
    out_of_scope: bool | None = None
    handover_reason: str | None = None
    handover_score: float | None = None
    probability_dissatisfied: float | None = None
    server: ServerTimings = ServerTimings()


@dataclass(frozen=True)
class TranscriptTurn:
    """One finished turn of a session; the reply's times at a client are 0."""

    turn_id: str
    user_text: str
    reply: TurnReply


@dataclass(frozen=True)
class Transcript:
    """A session as the server remembers it."""

    session_id: str
    state: str
    turns: tuple[TranscriptTurn, ...]
    model_digest: str


def check_text(**texts: str) -> None:
    """Check that texts can be sent: gRPC carries UTF-8, which has no lone surrogates (bytes that weren't text).

    Raises:
        InputError: one can't, or is no text; the field is named, the text isn't quoted.
    """
    for name, text in texts.items():
        if not isinstance(text, str):
            raise InputError(f"{name}: a text is needed (got {type(text).__name__})")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError(
                f"{name}: isn't valid Unicode text; send text that was decoded from UTF-8"
            ) from None


def check_number(kind: type[Real] | type[Integral], **numbers: Any) -> None:
    """Check that values are numbers of a kind; True is none.

    Raises:
        InputError: one isn't; the field is named.
    """
    wanted = "a whole number" if kind is Integral else "a number"
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, kind):
            raise InputError(f"{name}: {wanted} is needed (got {value!r:.40})")


def sampling_to_wire(sampling: Sampling) -> pb.Sampling:
    """How to generate.

    Raises:
        InputError: no `Sampling`, a number that isn't one or doesn't fit into its field, or a stop string that is no text.
    """
    if not isinstance(sampling, Sampling):
        raise InputError(f"sampling: a Sampling is needed (got {type(sampling).__name__})")
    for name, most in (("max_new_tokens", 2**32 - 1), ("top_k", 2**32 - 1), ("seed", 2**64 - 1)):
        value = getattr(sampling, name)
        check_number(Integral, **{f"sampling.{name}": value})
        if not 0 <= value <= most:
            raise InputError(f"sampling.{name}: {value} is out of range; use 0..{most}")
    check_number(Real, **{"sampling.temperature": sampling.temperature, "sampling.top_p": sampling.top_p})
    # The letters of a text would be taken one by one, and each end the reply.
    if not isinstance(sampling.stop, tuple | list):
        raise InputError(f"sampling.stop: a tuple of texts is needed (got {type(sampling.stop).__name__})")
    for stop in sampling.stop:
        check_text(**{"sampling.stop": stop})
    return pb.Sampling(
        max_new_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=sampling.seed,
        stop=sampling.stop,
    )


def info_from_wire(reply: pb.DescribeReply) -> ServerInfo:
    """What the server says about itself."""
    return ServerInfo(
        model_digest=reply.model_digest,
        declared_model=reply.declared_model,
        engine=reply.engine,
        flow_digest=reply.flow_digest,
        max_sessions=reply.max_sessions,
        max_context_tokens=reply.max_context_tokens,
        max_turn_tokens=reply.max_turn_tokens,
        version=reply.version,
    )


def reply_from_wire(reply: pb.TurnReply, first_token_ns: int, total_ns: int) -> TurnReply:
    """A finished turn with its times at the client."""
    usage, timings = reply.usage, reply.timings
    intent = reply.intent if reply.HasField("intent") else None
    handover = reply.handover if reply.HasField("handover") else None
    guess = reply.satisfaction if reply.HasField("satisfaction") else None
    return TurnReply(
        text=reply.text,
        token_ids=tuple(reply.token_ids),
        finish_reason=pb.FinishReason.Name(reply.finish_reason),
        intent=intent.label if intent is not None else None,
        handover=handover.decided if handover is not None else None,
        satisfaction=guess.score if guess is not None else None,
        prompt_tokens=_told(usage, "prompt_tokens"),
        reused_tokens=_told(usage, "reused_tokens"),
        generated_tokens=_told(usage, "generated_tokens"),
        dropped_turns=usage.dropped_turns,
        state=pb.SessionState.Name(reply.state),
        model_ns=timings.prefill_ns + timings.decode_ns,
        first_token_ns=first_token_ns,
        total_ns=total_ns,
        turn_index=reply.turn_index,
        intent_probability=intent.probability if intent is not None else None,
        out_of_scope=intent.out_of_scope if intent is not None else None,
        handover_reason=handover.reason if handover is not None else None,
        handover_score=handover.score if handover is not None else None,
        probability_dissatisfied=guess.probability_dissatisfied if guess is not None else None,
        server=ServerTimings(
            queue_ns=timings.queue_ns,
            prefill_ns=timings.prefill_ns,
            first_token_ns=timings.first_token_ns,
            decode_ns=timings.decode_ns,
            intent_ns=timings.intent_ns,
            handover_ns=timings.handover_ns,
            satisfaction_ns=timings.satisfaction_ns,
            total_ns=timings.total_ns,
        ),
    )


def transcript_from_wire(reply: pb.SessionTranscript) -> Transcript:
    """A session's transcript."""
    return Transcript(
        session_id=reply.session_id,
        state=pb.SessionState.Name(reply.state),
        turns=tuple(
            TranscriptTurn(turn.turn_id, turn.user_text, reply_from_wire(turn.reply, 0, 0))
            for turn in reply.turns
        ),
        model_digest=reply.model_digest,
    )


def _told(usage: Any, name: str) -> int | None:
    # A count that isn't there is unknown, which isn't 0.
    return int(getattr(usage, name)) if usage.HasField(name) else None
