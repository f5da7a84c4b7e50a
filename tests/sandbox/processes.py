"""The real server as a real process, and small helpers to talk to it."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from evalkit.wire import sandbox_pb2 as wire
from evalkit.wire import sandbox_pb2_grpc

SERVICE = "evalkit.sandbox.v1.Sandbox"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

START_S = 120.0


class SandboxProcess:
    """A running `sandbox serve`."""

    def __init__(
        self,
        process: "subprocess.Popen[str]",
        ready: dict[str, str],
        log: Path,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self.process = process
        self.ready = ready
        self.log = log
        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        self.address = str(ready["address"])
        self.channel = (
            grpc.insecure_channel(self.address, options=options)
            if credentials is None
            else grpc.secure_channel(self.address, credentials, options=options)
        )
        self.stub = sandbox_pb2_grpc.SandboxStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    def open(self, **fields: str) -> str:
        """Open a session and return its id."""
        return self.stub.OpenSession(wire.OpenSessionRequest(**fields)).session_id

    def turn(self, session: str, text: str, turn_id: str = "", **sampling: object) -> wire.TurnReply:
        """One unary turn."""
        return self.stub.Turn(turn_request(session, text, turn_id, **sampling), timeout=60)

    def stream(self, session: str, text: str, turn_id: str = "", timeout: float = 60, **sampling: object):  # type: ignore[no-untyped-def]
        """One streamed turn, as the call object."""
        return self.stub.StreamTurn(turn_request(session, text, turn_id, **sampling), timeout=timeout)

    def begin(self, session: str, text: str, turn_id: str = "", **sampling: object):  # type: ignore[no-untyped-def]
        """`stream`, and the server has it in hand: calls that are sent one after the other may overtake each other."""
        running = self.stream(session, text, turn_id, **sampling)
        assert eventually(lambda: self.is_busy(session))
        return running

    def is_busy(self, session: str) -> bool:
        """Whether a turn of an open session is in flight. Asks with an empty text, which leaves no trace."""
        status = status_of(lambda: self.turn(session, ""))
        assert status in (grpc.StatusCode.ABORTED, grpc.StatusCode.INVALID_ARGUMENT), status
        return status is grpc.StatusCode.ABORTED

    def status(self, service: str = SERVICE) -> int:
        """What health says."""
        return int(self.health.Check(health_pb2.HealthCheckRequest(service=service), timeout=5).status)

    def engine_pid(self) -> int:
        """The engine process: the server's only child that runs the worker."""
        workers = engine_pids(self.process.pid)
        assert len(workers) == 1
        return workers[0]

    @contextlib.contextmanager
    def frozen_engine(self) -> Iterator[None]:
        """Turns that begin inside the block stay in flight until its end."""
        pid = self.engine_pid()
        freeze(pid)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    @contextlib.contextmanager
    def frozen_in_mid_reply(
        self, text: str, turn_id: str = "", new_session: Callable[[], str] | None = None
    ) -> Iterator[tuple[str, Any]]:
        """A session and its streamed turn of 128 tokens: some have come, the others don't until the block's end."""
        for _ in range(
            20
        ):  # however quick the engine is, or slow this process: one of them is caught in the middle
            session = (new_session or self.open)()
            running = self.stream(session, text, turn_id, max_new_tokens=128)
            next(running)
            with self.frozen_engine():
                # More than once: what the engine said before it stood still may be on its way.
                if all(self.is_busy(session) for _ in range(3)):
                    yield session, running
                    return
        raise AssertionError("no turn was slow enough")

    def stop(self, seconds: float = 30) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)


# Any Python process imports this first, if it finds it.
_STOPS = """import os, signal, sys
if "sandbox.engine.worker" in sys.orig_argv:
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def stopping_engine(folder: Path) -> dict[str, str]:
    """An environment in which engine processes stop before they load anything, as if they took for ever to load."""
    (folder / "sitecustomize.py").write_text(_STOPS)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


def stopped_engine(server: int) -> int:
    """The engine process of a server in that environment, once it has stopped."""
    assert eventually(lambda: [_state(pid) for pid in engine_pids(server)] == ["T"], START_S)
    (engine,) = engine_pids(server)
    return engine


def engine_pids(server: int) -> list[int]:
    """Children of a server that run the engine."""
    found = []
    for pid in Path(f"/proc/{server}/task/{server}/children").read_text().split():
        with contextlib.suppress(OSError):  # it ended meanwhile
            if b"sandbox.engine.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    return found


def turn_request(session: str, text: str, turn_id: str = "", **sampling: object) -> wire.TurnRequest:
    """A turn request; 12 tokens unless told otherwise."""
    settings = wire.Sampling(**{"max_new_tokens": 12, **sampling})
    return wire.TurnRequest(session_id=session, turn_id=turn_id, user_text=text, sampling=settings)


@contextmanager
def serving(
    bundle: Path, folder: Path, *options: str, credentials: grpc.ChannelCredentials | None = None
) -> Iterator[SandboxProcess]:
    """Serve a bundle until the block ends; what is left of the server then is killed."""
    with serving_command([str(bundle), *options], folder, credentials) as process:
        yield process


@contextmanager
def serving_command(
    arguments: Sequence[str],
    folder: Path,
    credentials: grpc.ChannelCredentials | None = None,
    command: Sequence[str] = ("-m", "sandbox", "serve"),
) -> Iterator[SandboxProcess]:
    """The same with any arguments of `sandbox serve`, or of another command that serves."""
    log = folder / f"server-{time.monotonic_ns()}.log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, *command, *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        yield SandboxProcess(process, _ready_line(process, log), log, credentials)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _ready_line(process: "subprocess.Popen[str]", log: Path) -> dict[str, str]:
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], START_S)
    line = process.stdout.readline() if readable else ""
    assert line, f"no ready line; exit code {process.poll()}; {log.read_text()[-2000:]}"
    ready: dict[str, str] = json.loads(line)
    return ready


def status_of(call: Callable[[], object]) -> grpc.StatusCode:
    """The status with which a call fails; OK if it doesn't."""
    try:
        call()
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Whether the condition comes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie doesn't)."""
    return _state(pid) not in ("", "Z")


def _state(pid: int) -> str:
    """Its letter in the process table; none where it is gone."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def freeze(pid: int) -> None:
    """SIGSTOP: whatever it is sent now stays unanswered."""
    os.kill(pid, signal.SIGSTOP)


def kill(pid: int) -> None:
    """SIGKILL."""
    os.kill(pid, signal.SIGKILL)
