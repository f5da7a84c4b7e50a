"""The server process: one event loop, the gRPC services, and an orderly end."""

import asyncio
import contextlib
import gc
import json
import logging
import signal
import sys
from collections.abc import Awaitable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc

from evalkit.errors import InputError
from evalkit.wire import sandbox_pb2_grpc
from sandbox.admission import Admission
from sandbox.business.flow import BatchedFlow, BusinessFlow
from sandbox.calls import Context
from sandbox.conversation import Conversations
from sandbox.drain import Drain
from sandbox.engine.requests import Engine, RestartReason
from sandbox.health import NOT_SERVING, SERVING, Health
from sandbox.interceptor import CallInterceptor
from sandbox.limits import Limits
from sandbox.logs import log_loop_fault
from sandbox.metrics import NoMetrics, PrometheusMetrics
from sandbox.options import ServeOptions
from sandbox.owner import follow_owner
from sandbox.port import bind, check_address, make_server
from sandbox.prompts import opening_counter
from sandbox.served import Served, open_served
from sandbox.service import SERVICE_NAME, SandboxService, ServerIdentity
from sandbox.sessions import SessionStore
from sandbox.status import errors_as_status
from sandbox.tls import check_plaintext, server_credentials
from sandbox.tokens import TokenFile
from sandbox.tracing import tracing

log = logging.getLogger(__name__)

_SWEEP_INTERVAL_S = 10.0
# While a thread reads a long text for the flow, the loop gets the interpreter back after this; Python's own 5 ms would hold
# up every other turn.
_SWITCH_INTERVAL_S = 0.0005
# Calls that are no turns (health watchers among them) get this long to end.
_LAST_CALLS_S = 0.5
# New calls are held for so long before gRPC stops, so that none lies unread then, and after it has begun to, until its
# "go away" is on every connection.
_HOLD_S = 0.2
_GO_AWAY_S = 0.05


async def serve(options: ServeOptions) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Prints one JSON line when ready.

    Raises:
        InputError: an option, the bundle, the endpoint or the flow can't be used.
        EvalkitError: the engine died while loading.
    """
    check_address(options.listen)
    credentials = server_credentials(options.tls)
    if credentials is None:
        check_plaintext(options.listen, options.allow_plaintext)
    tokens = TokenFile(options.tokens_file) if options.tokens_file else None
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(log_loop_fault)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    owner = asyncio.ensure_future(follow_owner(stop))
    health = Health([SERVICE_NAME])
    opening = asyncio.ensure_future(open_served(options, health.follow_engine))
    if not await _until_stopped(opening, stop):
        return
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(owner.cancel)
        await _Server(options, opening.result(), health, credentials, tokens, stack).run(stop)


class _Server:
    """The parts of a running server; what has to end is put on the stack as it begins."""

    def __init__(
        self,
        options: ServeOptions,
        served: Served,
        health: Health,
        credentials: grpc.ServerCredentials | None,
        tokens: TokenFile | None,
        stack: contextlib.AsyncExitStack,
    ) -> None:
        self._options = options
        self._stack = stack
        self._served = served
        self._health = health
        self._engine = served.engine
        self._limits = Limits(
            max_context_tokens=served.max_context_tokens,
            max_sessions=options.max_sessions,
            idle_ttl_s=options.idle_ttl_s,
            max_waiting_turns=options.max_waiting,
            opening_tokens=opening_counter(served.renderer),
            system_problem=served.renderer.system_problem() if served.renderer else "",
        )
        flow = BusinessFlow.load(options.flow) if options.flow else None
        self._store = SessionStore(self._limits, self._engine.release)
        self._admission = Admission(self._engine, self._limits.max_waiting_turns)
        self._drain = Drain()
        self._tokens = tokens
        self._metrics: NoMetrics | PrometheusMetrics = NoMetrics()
        self._metrics_address: str | None = None
        if options.metrics is not None:
            self._metrics = PrometheusMetrics(_Gauges(self._store, self._admission, self._engine))
            self._metrics_address, stop = self._metrics.serve(options.metrics)
            stack.callback(stop)
        conversations = Conversations(
            self._store,
            self._engine,
            served.renderer,
            BatchedFlow(flow) if flow else None,
            self._limits,
            self._admission,
        )
        identity = ServerIdentity(
            model_digest=served.model_digest,
            engine=served.engine_name,
            flow_digest=flow.digest if flow else "",
            version=version("evalkit"),
            declared_model=served.declared_model,
        )
        self._service = SandboxService(
            identity, self._limits, self._store, conversations, self._drain, self._metrics, options.log_text
        )
        self._grpc = make_server(self._limits, self._interceptors())
        self._address = self._add_services(credentials)

    async def run(self, stop: asyncio.Event) -> None:
        """Start everything, serve until `stop` is set, drain."""
        if self._tokens is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._tokens.reload)
            self._in_background(self._tokens.follow())
        self._in_background(_sweep(self._store))
        await self._health.set(NOT_SERVING)
        await self._grpc.start()
        self._stack.push_async_callback(self._stop_grpc)
        self._stack.push_async_callback(self._engine.close)
        if await _until_stopped(self._engine.start(), stop):
            # What is loaded by now stays: a full collection that walks it would hold up every turn in flight.
            gc.collect()
            gc.freeze()
            await self._health.set(SERVING)
            self._say_ready()
            await _until_stopped(self._engine.run(), stop)
        await self._health.shut_down()
        if not await self._drain.finish(self._options.grace_s):
            log.warning("turns still running after %.1f s of grace are cancelled", self._options.grace_s)

    async def _stop_grpc(self) -> None:
        self._drain.hold()
        await asyncio.sleep(_HOLD_S)
        stopping = asyncio.ensure_future(self._grpc.stop(_LAST_CALLS_S))
        await asyncio.sleep(_GO_AWAY_S)
        self._drain.let_go()
        await stopping

    def _interceptors(self) -> Sequence[Any]:
        tokens = self._tokens

        async def authenticate(context: Context) -> str:
            assert tokens is not None
            async with errors_as_status(context):
                return tokens.tenant_of(context.invocation_metadata() or ())
            raise AssertionError("a caller is known or the call has ended")

        calls = CallInterceptor(authenticate if tokens else None, self._metrics)
        traces = tracing(self._options.otlp)
        if traces is None:
            return [calls]
        self._stack.callback(traces.close)
        return [calls, traces.interceptor]

    def _add_services(self, credentials: grpc.ServerCredentials | None) -> str:
        server = self._grpc
        sandbox_pb2_grpc.add_SandboxServicer_to_server(self._service, server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health.servicer, server)
        if self._options.reflection:
            from grpc_reflection.v1alpha import reflection

            names = [SERVICE_NAME, "grpc.health.v1.Health", reflection.SERVICE_NAME]
            reflection.enable_server_reflection(names, server)
        return bind(server, self._options.listen, credentials)

    def _say_ready(self) -> None:
        ready = {
            "address": self._address,
            "model_digest": self._served.model_digest,
            "metrics": self._metrics_address,
        }
        if self._served.declared_model:
            ready["declared_model"] = self._served.declared_model
        try:
            sys.stdout.write(json.dumps(ready) + "\n")
            sys.stdout.flush()
        except OSError as error:
            raise InputError(
                f"standard output: the line with the address can't be written ({error.strerror}); "
                "give it a reader that stays, or a file"
            ) from None

    def _in_background(self, work: "asyncio._CoroutineLike[None]") -> None:
        self._stack.callback(asyncio.create_task(work).cancel)


class _Gauges:
    """What the metrics read at a scrape; plain counts, safe to read from another thread."""

    def __init__(self, store: SessionStore, admission: Admission, engine: Engine) -> None:
        self._store = store
        self._admission = admission
        self._engine = engine

    def active_sessions(self) -> int:
        return len(self._store)

    def requests(self) -> tuple[int, int]:
        waiting = self._admission.waiting()
        return max(0, self._admission.in_flight - waiting), waiting

    def kv_cache_usage(self) -> float | None:
        load = self._engine.load()
        if load.kv_used_bytes is None or not load.kv_budget_bytes:
            return None
        return load.kv_used_bytes / load.kv_budget_bytes

    def engine_restarts(self) -> Mapping[RestartReason, int]:
        return self._engine.load().restarts


async def _until_stopped(work: Awaitable[object], stop: asyncio.Event) -> bool:
    """Run `work` until it ends (True, or its error) or the server is asked to stop (False)."""
    tasks = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
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
