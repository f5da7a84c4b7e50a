"""Keeps one engine process running: starts it, talks to it, and starts it again when it dies or hangs.

Turns in flight when that happens fail with EngineUnavailableError; new ones wait a while for the next engine. Sessions
aren't touched: their token ids live in the server, and the next turn simply finds a cold cache.
"""

import asyncio
import contextlib
import enum
import logging
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from evalkit.errors import EvalkitError, IncompleteError, InputError
from sandbox.engine import child
from sandbox.engine.heartbeat import Heartbeat
from sandbox.engine.in_flight import TurnsInFlight, read_pieces
from sandbox.engine.pacing import STREAM_INTERVAL_MS
from sandbox.engine.pipe import Message, frame
from sandbox.engine.requests import (
    EngineLoad,
    GenerationPiece,
    GenerationRequest,
    RestartReason,
)
from sandbox.engine.step_model import EngineName
from sandbox.errors import EngineUnavailableError

log = logging.getLogger(__name__)

_FIRST_BACK_OFF_S = 0.2
_MAX_BACK_OFF_S = 10.0
# A turn that finds the engine restarting waits for it, at most this long.
_PATIENCE_S = 20.0
_NO_LOAD: Message = {"running": 0, "waiting": 0, "kv_used": 0}
# A restarted engine may take so many times the first start to load (or its timeout, if that is longer); each one that
# doesn't make it gives the next one twice as long.
_LOAD_PATIENCE = 10.0
# An engine that ran for so long before it died starts the back-off anew.
_STABLE_S = 30.0
# A step takes milliseconds of every core, what the server does for a turn a few hundred microseconds of one: that goes first.
_ENGINE_NICE = 5


class EngineState(enum.Enum):
    """STARTING → READY → STARTING (it died or hangs) …; CLOSED at the end."""

    STARTING = "starting"
    READY = "ready"
    CLOSED = "closed"


class EngineSupervisor:
    """The server's side of the engine.

    Attributes:
        state: what the engine is doing.
        restarts: how often it was lost after it was ready, by reason.
        engine: which graph serves; None until the engine process says so, unless it was asked for.
        pid: of the running engine process, None between two.
    """

    worker_module = "sandbox.engine.worker"

    def __init__(
        self,
        bundle: Path,
        kv_bytes: int,
        on_state: Callable[[EngineState], None],
        engine: EngineName | None = None,
        max_rows: int = 32,
        max_waiting: int = 256,
        timeout_s: float = 120.0,
        stream_interval_ms: float = STREAM_INTERVAL_MS,
    ) -> None:
        """Prepare, without starting anything.

        Args:
            bundle: bundle folder.
            kv_bytes: budget of the engine's cache.
            on_state: called after each change of state, on the event loop.
            engine: which graph serves; None for the one that `choose_engine` takes.
            max_rows: turns computed at once.
            max_waiting: turns that may wait in the engine for cache memory or a place in the batch.
            timeout_s: an engine that is ready and doesn't answer for so long hangs. It has to be longer than the
                longest round of the engine's loop, the compilation of a shape included.
            stream_interval_ms: least time between two pieces of a reply, see `sandbox.engine.pacing`.
        """
        self.state = EngineState.STARTING
        self.restarts: dict[RestartReason, int] = {"died": 0, "hung": 0}
        self.pid: int | None = None
        self.engine: EngineName | None = engine
        self._max_rows = max_rows
        self._timeout_s = timeout_s
        self._load_limit_s = timeout_s  # of a restart; how long a start takes is known after the first
        self._start_message: Message = {
            "bundle": str(bundle.resolve()),
            "kv_bytes": kv_bytes,
            "engine": engine,
            "max_rows": max_rows,
            "max_waiting": max_waiting,
            "stream_interval_ms": stream_interval_ms,
            "nice": _ENGINE_NICE,
        }
        self._load: Message = _NO_LOAD
        self._death = ""  # how the last engine process was lost
        self._on_state = on_state
        self._settled = asyncio.Event()  # ready or closed: no use in waiting
        self._process: Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._turns = TurnsInFlight()

    async def start(self) -> None:
        """Start the engine and wait until it has loaded the model; from then on it's kept running.

        Raises:
            InputError: the engine refuses the bundle.
            IncompleteError: it was killed while loading.
            EvalkitError: it died of itself while loading.
        """
        started_s = time.monotonic()
        process = await self._launch()
        self._load_limit_s = max(self._timeout_s, _LOAD_PATIENCE * (time.monotonic() - started_s))
        self._keeper = asyncio.create_task(self._keep_running(process))

    async def run(self) -> None:
        """Wait while the engine is kept running; returns only with a fault of the supervisor itself."""
        assert self._keeper is not None, "start() comes first"
        await asyncio.shield(self._keeper)

    async def close(self) -> None:
        """End the engine; turns still in flight fail."""
        self._set_state(EngineState.CLOSED)
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        self._turns.fail()
        if self._process is not None:
            await child.kill(self._process)
            self.pid = None

    @contextlib.asynccontextmanager
    async def generate(self, request: GenerationRequest) -> AsyncIterator[AsyncIterator[GenerationPiece]]:
        """See `sandbox.engine.requests.Engine`."""
        await self._wait_until_ready()
        number, inbox = self._turns.join()
        self._send(
            {
                "op": "generate",
                "request": number,
                "key": request.cache_key,
                "tenant": request.tenant,
                "shared": request.shared_tokens,
                "prompt": request.prompt_ids,
                "sampling": request.sampling,
            }
        )
        try:
            yield read_pieces(inbox, self._unavailable)
        finally:
            # The end hasn't come, so whoever wanted the reply has left.
            if self._turns.leave(number):
                self._send({"op": "cancel", "request": number})

    def release(self, cache_key: int) -> None:
        """See `sandbox.engine.requests.Engine`."""
        self._send({"op": "release", "key": cache_key})

    def load(self) -> EngineLoad:
        """See `sandbox.engine.requests.Engine`."""
        return EngineLoad(
            running=self._load["running"],
            waiting=self._load["waiting"],
            batch_slots=self._max_rows,
            kv_used_bytes=self._load["kv_used"],
            kv_budget_bytes=self._start_message["kv_bytes"],
            restarts=dict(self.restarts),
        )

    async def _wait_until_ready(self) -> None:
        if not self._settled.is_set():  # waiting for what is so already would cost a task and a timer
            # Not wait_for: Python 3.11's loses a cancel that comes in the step in which the wait ends.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    await self._settled.wait()
        if self.state is not EngineState.READY:
            raise self._unavailable()

    def _unavailable(self) -> EngineUnavailableError:
        if self.state is EngineState.CLOSED:
            return EngineUnavailableError(
                "the server is shutting down; the turn left no trace, send it to another server"
            )
        reason = f" ({self._death})" if self._death else ""
        return EngineUnavailableError(
            f"the engine is restarting{reason}; the turn left no trace, send it again in a moment"
        )

    async def _launch(self) -> Process:
        environment = {
            "GLOG_v": "3",
            **os.environ,
        }  # MindSpore logs errors only, unless the user asked for more
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", self.worker_module),
            stdin=PIPE,
            stdout=PIPE,
            env=environment,
            # A group of its own: Ctrl-C in a terminal goes to the server alone, which ends its engine after draining. But
            # the same session: Linux may weigh sessions alike (autogroup), and niceness then counts within one only.
            process_group=0,
        )
        self._process = process
        try:
            self._send(self._start_message)
            message = await child.read(process)
        except BaseException:
            await child.kill(process)
            raise
        if message is None:
            code = await process.wait()
            if code == -signal.SIGKILL:  # by the system or a person: no line of its own says why
                raise IncompleteError(
                    "the engine process was killed while loading (signal 9), as the system does for want of memory; give a"
                    " smaller --kv-mib or more memory, and start it again"
                )
            raise EvalkitError(
                f"the engine process ended while loading ({child.exit_text(code)}); its last lines say why"
            )
        if message["event"] == "failed":
            await process.wait()
            raise InputError(message["message"])
        self.pid = process.pid
        self.engine = message["engine"]
        self._set_state(EngineState.READY)
        return process

    async def _keep_running(self, process: Process) -> None:
        back_off_s = _FIRST_BACK_OFF_S
        while True:
            ready_s = time.monotonic()
            heartbeat = Heartbeat(lambda: self._send({"op": "ping"}), self._timeout_s)
            watch = asyncio.create_task(self._kill_when_silent(process, heartbeat))
            try:
                async for message in child.messages(process):
                    match message["event"]:
                        case "pong":
                            heartbeat.answered()
                        case "load":
                            self._load = message
                        case _:
                            self._turns.deliver(message)
                code = await process.wait()
            finally:
                watch.cancel()
            self.pid = None
            self._load = _NO_LOAD
            if self.state is EngineState.READY:  # else it was killed, and that has been told
                self._lose("died", child.exit_text(code))
            if time.monotonic() - ready_s > _STABLE_S:
                back_off_s = _FIRST_BACK_OFF_S
            process, back_off_s = await self._relaunch(self._death, back_off_s)

    async def _kill_when_silent(self, process: Process, heartbeat: Heartbeat) -> None:
        await heartbeat.until_silent()
        how = f"it hung: no answer for {self._timeout_s:g} s"
        log.error("engine process %d is killed (%s)", process.pid, how)
        self._lose("hung", how)
        with contextlib.suppress(ProcessLookupError):
            process.kill()

    def _lose(self, reason: RestartReason, how: str) -> None:
        """Turns in flight fail now; the next ones wait for the next engine."""
        self._death = how
        self.restarts[reason] += 1
        self._set_state(EngineState.STARTING)
        self._turns.fail()

    async def _relaunch(self, reason: str, back_off_s: float) -> tuple[Process, float]:
        limit_s = self._load_limit_s
        while True:
            log.error("engine ended (%s); starting it again in %.1f s", reason, back_off_s)
            await asyncio.sleep(back_off_s)
            back_off_s = min(2 * back_off_s, _MAX_BACK_OFF_S)
            try:
                async with asyncio.timeout(limit_s):
                    return await self._launch(), back_off_s
            except EvalkitError as error:
                reason = str(error)
            except TimeoutError:
                reason = f"it hung while loading: not ready after {limit_s:.3g} s"
                limit_s *= 2

    def _send(self, message: Message) -> None:
        # A dead engine's pipe swallows writes; its death is noticed where its answers are read.
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(frame(message))

    def _set_state(self, state: EngineState) -> None:
        if self.state is not EngineState.CLOSED:
            self.state = state
            if state is EngineState.STARTING:
                self._settled.clear()
            else:
                self._settled.set()
            self._on_state(state)
