"""The batcher's messages over the pipe: what it reads, and what it says about a turn."""

import time
from collections.abc import Callable

from sandbox.domain import FinishReason, Sampling
from sandbox.engine.pipe import Message
from sandbox.engine.sampler import Sampler
from sandbox.engine.text_stream import TextStream
from sandbox.engine.turns import ActiveTurn


def read_turn(message: Message, decode: Callable[[list[int]], str]) -> ActiveTurn:
    """The turn that a `generate` message asks for.

    Args:
        message: from the supervisor; its `arrived_ns` is the reader's.
        decode: token ids → text.
    """
    sampling = Sampling(**{**message["sampling"], "stop": tuple(message["sampling"]["stop"])})
    return ActiveTurn(
        request=message["request"],
        key=message["key"],
        tenant=message["tenant"],
        shared_tokens=message["shared"],
        prompt_tokens=len(message["prompt"]),
        ids=list(message["prompt"]),
        sampling=sampling,
        sampler=Sampler(sampling),
        text=TextStream(decode, sampling.stop),
        # Since then it has waited for the round under way, and that is time in the engine.
        arrived_ns=message.get("arrived_ns", time.perf_counter_ns()),
    )


def rejected(turn: ActiveTurn, reason: str) -> Message:
    """The turn isn't taken."""
    return {"event": "rejected", "request": turn.request, "reason": reason}


def broken(turn: ActiveTurn, reason: str) -> Message:
    """The model gives no token."""
    return {"event": "broken", "request": turn.request, "reason": reason}


def token_chosen(turn: ActiveTurn, token: int, text: str) -> Message:
    """One more token, and the text that may be shown."""
    return {"event": "token", "request": turn.request, "id": token, "text": text}


def ended(turn: ActiveTurn, reason: FinishReason, token: int | None, text: str) -> Message:
    """The turn is over; its last token comes along. Times are explained in `ActiveTurn`."""
    work_ns = turn.prefill_ns + turn.decode_ns
    return {
        "event": "end",
        "request": turn.request,
        "id": token,
        "text": text,
        "reason": reason.value,
        "reused": turn.reused,
        "queue_ns": max(0, time.perf_counter_ns() - turn.arrived_ns - work_ns),
        "prefill_ns": turn.prefill_ns,
        "decode_ns": turn.decode_ns,
    }
