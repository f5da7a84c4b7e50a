"""What stands behind the sessions: a bundle in an engine process of ours, or a model that somebody else serves."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from evalkit.bundle import Bundle, load_bundle
from evalkit.chat import ChatRenderer
from evalkit.errors import InputError
from evalkit.scenario.model_schema import EndpointRef
from sandbox.engine.kv_cache import KvShape
from sandbox.engine.requests import Engine
from sandbox.engine.supervisor import EngineState, EngineSupervisor
from sandbox.options import ServeOptions

OnState = Callable[[EngineState], None]

# Turns that the engine computes at once.
_BATCH_ROWS = 32


class RunningEngine(Engine, Protocol):
    """An engine with a beginning and an end."""

    async def start(self) -> None:
        """Get ready for turns.

        Raises:
            EvalkitError: it can't.
        """
        ...

    async def run(self) -> None:
        """Keep it ready; returns only with a fault."""
        ...

    async def close(self) -> None:
        """End it; turns still in flight fail."""
        ...


@dataclass(frozen=True)
class Served:
    """A model and the engine that generates its replies.

    Attributes:
        engine: not started yet.
        engine_name: mindir, onnx or openai; which of a bundle's graphs runs may be known only once it does.
        renderer: turns messages into token ids; None for an engine that is asked with messages.
        max_context_tokens: prompt and reply together; 0 if nobody says.
        model_digest: of a bundle; "" for a served model.
        declared_model: what the operator says a served model is; "" for a bundle.
    """

    engine: RunningEngine
    engine_name: Callable[[], str]
    renderer: ChatRenderer | None
    max_context_tokens: int
    model_digest: str = ""
    declared_model: str = ""


async def open_served(options: ServeOptions, on_state: OnState) -> Served:
    """Load the bundle, or try the endpoint.

    Args:
        options: which model, and how.
        on_state: called after each change of the engine's state, on the event loop.

    Raises:
        InputError: the bundle can't be run so, the cache budget is too small, or the endpoint doesn't fit or answer.
    """
    if options.endpoint is not None:
        return await _endpoint(options.endpoint, options.max_sessions, on_state)
    assert options.bundle is not None, "the command line asks for one or the other"
    return _bundle(options.bundle, options, on_state)


async def _endpoint(ref: EndpointRef, max_sessions: int, on_state: OnState) -> Served:
    from sandbox.engine.remote import RemoteEngine

    # A session has one turn at a time.
    try:
        engine = RemoteEngine(ref, connections=max_sessions, on_state=on_state)
    except InputError as error:
        # Configuration files name the field, the command line its option.
        raise InputError(str(error).replace("api_key_env:", "--api-key-env:")) from None
    await engine.connect()
    return Served(engine, lambda: "openai", None, engine.max_context_tokens, declared_model=ref.declare)


def _bundle(path: Path, options: ServeOptions, on_state: OnState) -> Served:
    bundle = load_bundle(path)
    _check_vocabulary(bundle)
    engine = EngineSupervisor(
        path,
        _kv_budget(bundle, options.kv_mib),
        on_state,
        engine=options.engine,
        max_rows=_BATCH_ROWS,
        # Admission bounds the queue; a burst that it let in stands in the engine's queue before it gets its rows.
        max_waiting=_BATCH_ROWS + options.max_waiting,
        timeout_s=options.engine_timeout_s,
        stream_interval_ms=options.stream_interval_ms,
    )
    return Served(
        engine,
        lambda: engine.engine or "",
        ChatRenderer(bundle.tokenizer),
        bundle.model.max_length,
        model_digest=bundle.model_digest,
    )


def _check_vocabulary(bundle: Bundle) -> None:
    tokens, rows = bundle.tokenizer.vocab_size, bundle.model.vocab_size
    if tokens > rows:
        raise InputError(
            f"{bundle.path}: the tokenizer knows {tokens} tokens, the model {rows}; export the bundle again with its own tokenizer"
        )


def _kv_budget(bundle: Bundle, kv_mib: int) -> int:
    model = bundle.model
    needed = KvShape(model.layers, model.kv_heads, model.head_size).bytes_for(model.max_length)
    if needed > kv_mib << 20:
        raise InputError(
            f"--kv-mib: {kv_mib} MiB is less than one session of {model.max_length} tokens takes; give at least"
            f" {-(-needed // (1 << 20))}"
        )
    memory_mib = _memory_mib()
    if memory_mib is not None and kv_mib > memory_mib:
        raise InputError(f"--kv-mib: {kv_mib} MiB is more than this machine's {memory_mib} MiB; give less")
    return kv_mib << 20


def _memory_mib() -> int | None:
    """Memory of the machine; None where the system doesn't tell."""
    try:
        return (os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) >> 20
    except (ValueError, OSError):
        return None
