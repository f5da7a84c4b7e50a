"""The server process: one event loop, the gRPC services, health, and an orderly end."""

import asyncio
import contextlib
import json
import logging
import signal
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from evalkit.bundle import Bundle, load_bundle
from evalkit.chat import ChatRenderer
from evalkit.errors import InputError
from evalkit.wire import sandbox_pb2_grpc
from sandbox.business.flow import BatchedFlow, BusinessFlow
from sandbox.conversation import Conversations
from sandbox.drain import Drain
from sandbox.engine.kv_cache import KvShape
from sandbox.engine.supervisor import EngineState, EngineSupervisor
from sandbox.limits import Limits
from sandbox.service import SERVICE_NAME, SandboxService, ServerIdentity
from sandbox.sessions import SessionStore

log = logging.getLogger(__name__)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

_SWEEP_INTERVAL_S = 10.0
# Calls that are no turns (health watchers among them) get this long to end.
_LAST_CALLS_S = 0.5


@dataclass(frozen=True)
class ServeOptions:
    """What `sandbox serve` was asked for.

    Attributes:
        bundle: bundle folder.
        flow: flow folder, or None.
        listen: HOST:PORT, port 0 for a free one.
        max_sessions: live sessions at most.
        kv_mib: budget of the engine's cache.
        grace_s: how long turns may still run after SIGTERM.
    """

    bundle: Path
    flow: Path | None
    listen: str
    max_sessions: int
    kv_mib: int
    grace_s: float


class Health:
    """grpc.health.v1: the server as a whole ("") and the sandbox service, NOT_SERVING unless the engine is ready."""

    def __init__(self) -> None:
        self.servicer = HealthServicer()
        self._updates: set[asyncio.Task[None]] = set()

    async def set(self, status: "health_pb2.HealthCheckResponse.ServingStatus.ValueType") -> None:
        """Set the status of both names."""
        for name in ("", SERVICE_NAME):
            await self.servicer.set(name, status)

    def follow_engine(self, state: EngineState) -> None:
        """Show the engine's state."""
        update = asyncio.create_task(self.set(SERVING if state is EngineState.READY else NOT_SERVING))
        self._updates.add(update)
        update.add_done_callback(self._updates.discard)


async def serve(options: ServeOptions) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Prints one JSON line when ready.

    Raises:
        InputError: the bundle, the flow, the address or the cache budget can't be used.
        EvalkitError: the engine died while loading.
    """
    bundle = load_bundle(options.bundle)
    limits = Limits(max_context_tokens=bundle.model.max_length, max_sessions=options.max_sessions)
    flow = BusinessFlow.load(options.flow) if options.flow else None
    _check_vocabulary(bundle)
    renderer = ChatRenderer(bundle.tokenizer)
    kv_bytes = _kv_budget(bundle, options.kv_mib)

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    health_status = Health()
    await health_status.set(NOT_SERVING)
    engine = EngineSupervisor(options.bundle, kv_bytes, health_status.follow_engine)
    store = SessionStore(limits, engine.release)
    drain = Drain()
    identity = ServerIdentity(
        model_digest=bundle.model_digest,
        engine="mindir",
        flow_digest=flow.digest if flow else "",
        version=version("evalkit"),
    )
    conversations = Conversations(store, engine, renderer, BatchedFlow(flow) if flow else None, limits)
    service = SandboxService(identity, limits, store, conversations, drain)

    server = grpc.aio.server(options=_channel_options(limits))
    sandbox_pb2_grpc.add_SandboxServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    health_pb2_grpc.add_HealthServicer_to_server(health_status.servicer, server)
    address = _bind(server, options.listen)
    await server.start()
    sweeper = asyncio.create_task(_sweep(store))
    try:
        if await _until_stopped(engine.start(), stop):
            await health_status.set(SERVING)
            ready = {"address": address, "model_digest": bundle.model_digest, "metrics": None}
            sys.stdout.write(json.dumps(ready) + "\n")
            sys.stdout.flush()
            await _until_stopped(engine.run(), stop)
        await health_status.servicer.enter_graceful_shutdown()
        if not await drain.finish(options.grace_s):
            log.warning("turns still running after %.1f s of grace are cancelled", options.grace_s)
    finally:
        sweeper.cancel()
        await engine.close()
        await server.stop(_LAST_CALLS_S)


async def _until_stopped(work: "asyncio._CoroutineLike[None]", stop: asyncio.Event) -> bool:
    """Run `work` until it ends (True, or its error) or the server is asked to stop (False)."""
    tasks = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
            return True
        return False
    finally:
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _sweep(store: SessionStore) -> None:
    while True:
        await asyncio.sleep(_SWEEP_INTERVAL_S)
        store.sweep()


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
    return kv_mib << 20


def _channel_options(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.max_message_bytes),
        ("grpc.max_send_message_length", limits.max_message_bytes),
        # A client whose machine vanished is noticed, and its turn cancelled, within 40 s.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # Otherwise a second server could bind the same port and take half of the calls.
        ("grpc.so_reuseport", 0),
    ]


def _bind(server: grpc.aio.Server, listen: str) -> str:
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise InputError(f"--listen: {listen!r} isn't HOST:PORT; write for example 127.0.0.1:0")
    try:
        bound = server.add_insecure_port(listen)
    except RuntimeError:
        bound = 0
    if not bound:
        raise InputError(
            f"--listen: can't listen on {listen}; the port is taken or the host isn't this machine's"
        )
    return f"{host}:{bound}"
