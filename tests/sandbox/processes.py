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
        """`stream`, and a round trip after it: calls that are sent at the same moment may overtake each other."""
        running = self.stream(session, text, turn_id, **sampling)
        self.status()
        return running

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

    def stop(self, seconds: float = 30) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)


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
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def freeze(pid: int) -> None:
    """SIGSTOP: whatever it is sent now stays unanswered."""
    os.kill(pid, signal.SIGSTOP)


def kill(pid: int) -> None:
    """SIGKILL."""
    os.kill(pid, signal.SIGKILL)
