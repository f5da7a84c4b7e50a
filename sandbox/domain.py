"""What the sandbox talks about: turns, replies, timings. No wire type and no model type appears here."""

import enum
from dataclasses import dataclass, field


class FinishReason(enum.Enum):
    """Why a reply ended."""

    END = "end"
    STOP_STRING = "stop_string"
    LENGTH = "length"
    CANCELLED = "cancelled"
    HANDED_OVER = "handed_over"


class SessionState(enum.Enum):
    """OPEN → HANDED_OVER → CLOSED; turns are taken in OPEN only."""

    OPEN = "open"
    HANDED_OVER = "handed_over"
    CLOSED = "closed"


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        max_new_tokens: at most this many tokens are generated.
        temperature: 0 takes the most probable token; above it, logits are divided by it and a token is drawn.
        top_k: only the k most probable tokens are drawn from; 0 for all.
        top_p: only the smallest set of tokens with this probability is drawn from, in (0, 1].
        seed: of the turn's own random generator.
        stop: strings that end the reply; they aren't part of it.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class TurnInput:
    """One turn as the caller asked for it; an empty `turn_id` means that the caller won't retry."""

    session_id: str
    turn_id: str
    user_text: str
    sampling: Sampling


@dataclass(frozen=True)
class IntentGuess:
    """What the user wants, as the recogniser sees it.

    Attributes:
        label: the most probable intent.
        probability: its calibrated probability.
        out_of_scope: no intent is probable enough.
        probabilities: of every intent the recogniser knows; what is left to 1 is the probability of none of them.
    """

    label: str
    probability: float
    out_of_scope: bool
    probabilities: dict[str, float] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class HandoverDecision:
    """Whether a person takes over; `score` in 0..1, `reason` names the signal behind it ("" when not decided)."""

    decided: bool
    reason: str
    score: float


@dataclass(frozen=True)
class SatisfactionGuess:
    """Expected rating 1..5 of the turn, and the probability of a rating of 1 or 2."""

    score: float
    probability_dissatisfied: float


@dataclass(frozen=True)
class Usage:
    """Tokens of one turn; None where the engine doesn't tell (a served model), which isn't 0.

    Attributes:
        prompt_tokens: length of the prompt, history included.
        reused_tokens: how many of them were still in the engine's cache.
        generated_tokens: length of the reply, the end token included.
        dropped_turns: how many of the session's oldest turns the prompt no longer holds.
    """

    prompt_tokens: int | None = 0
    reused_tokens: int | None = 0
    generated_tokens: int | None = 0
    dropped_turns: int = 0


@dataclass(frozen=True)
class Timings:
    """Nanoseconds of one turn, measured on the server.

    queue + prefill + decode is the time inside the engine; total minus that is what the server adds to a turn.

    Attributes:
        queue_ns: waiting in the engine while it worked on other turns.
        prefill_ns: the engine's work up to the first token.
        first_token_ns: from the turn's arrival to its first token.
        decode_ns: the engine's work on the tokens after the first.
        intent_ns, handover_ns, satisfaction_ns: the business flow.
        total_ns: the whole turn.
    """

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
    """The finished turn. Predictions are None where no flow is loaded."""

    session_id: str
    turn_id: str
    turn_index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    intent: IntentGuess | None
    handover: HandoverDecision | None
    satisfaction: SatisfactionGuess | None
    usage: Usage
    timings: Timings
    state: SessionState


@dataclass(frozen=True)
class TurnPiece:
    """A piece of a reply as it is generated; the last piece of a turn carries the whole `reply`.

    `repeated` says that the reply isn't new: the same turn_id was answered before.
    """

    text: str
    token_ids: tuple[int, ...]
    reply: TurnReply | None = None
    repeated: bool = False


@dataclass(frozen=True)
class TranscriptTurn:
    """One finished turn of a session."""

    turn_id: str
    user_text: str
    reply: TurnReply
