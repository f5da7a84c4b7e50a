"""What the server asks of an engine and hears from it. Engines of any kind speak this."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from evalkit.chat import Message
from sandbox.domain import FinishReason, Sampling

# Why an engine process was started again: it ended, or it stopped answering and was killed.
RestartReason = Literal["died", "hung"]


@dataclass(frozen=True)
class GenerationRequest:
    """One reply to generate.

    Attributes:
        cache_key: names the session whose cached prefix may be reused.
        prompt_ids: the whole conversation so far; empty for an engine that is asked with messages.
        sampling: how to choose tokens.
        tenant: whose conversation it is; nothing cached for one tenant is seen by another.
        shared_tokens: how many leading prompt ids (prefix token and system text) other sessions of the tenant may
            reuse; what the user said is never among them.
        messages: the whole conversation so far as messages, for an engine that tokenises by itself; else empty.
    """

    cache_key: int
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    tenant: str = ""
    shared_tokens: int = 0
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True)
class EngineLoad:
    """What the engine is busy with, as last heard of.

    Attributes:
        running: turns that take part in steps.
        waiting: turns that wait for a place in the batch or for cache memory.
        batch_slots: turns that can run at once; None if the engine doesn't say.
        kv_used_bytes, kv_budget_bytes: cache memory; None if the engine doesn't say.
        restarts: how often the engine process was lost after it was ready, by reason; empty where there is none.
    """

    running: int
    waiting: int
    batch_slots: int | None
    kv_used_bytes: int | None
    kv_budget_bytes: int | None
    restarts: Mapping[RestartReason, int]


@dataclass(frozen=True)
class GenerationEnd:
    """How a generation went; times in nanoseconds as in sandbox.domain.Timings.

    Attributes:
        finish_reason: why the reply ended.
        reused_tokens: prompt tokens that were still cached; None if the engine doesn't tell.
        queue_ns, prefill_ns, decode_ns: see sandbox.domain.Timings.
        prompt_tokens, generated_tokens: counted by an engine that is asked with messages; None if it doesn't tell.
        dropped_turns: how many of the oldest exchanges in `messages` the engine left out to fit its context.
    """

    finish_reason: FinishReason
    reused_tokens: int | None
    queue_ns: int
    prefill_ns: int
    decode_ns: int
    prompt_tokens: int | None = None
    generated_tokens: int | None = None
    dropped_turns: int = 0


@dataclass(frozen=True)
class GenerationPiece:
    """New tokens and the text that became safe to show; the last piece of a generation carries its `end`."""

    token_ids: tuple[int, ...]
    text: str
    end: GenerationEnd | None = None


class Engine(Protocol):
    """Generates replies."""

    def generate(
        self, request: GenerationRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[GenerationPiece]]:
        """Pieces of the reply; leaving the context before its end cancels the generation.

        Raises (while iterating):
            EngineUnavailableError: the engine died, is restarting or shutting down.
            CapacityError: its queue is full, or the turn is longer than the model reads.
        """
        ...

    def release(self, cache_key: int) -> None:
        """Forget what is cached for a session; unknown keys are ignored."""
        ...

    def load(self) -> EngineLoad:
        """What the engine is busy with; never waits."""
        ...
