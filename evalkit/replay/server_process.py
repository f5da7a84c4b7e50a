"""A sandbox of our own for one run: a fresh process, ended with the run whatever happens, kill -9 included."""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from evalkit.errors import IncompleteError, InputError
from evalkit.owner import OWNER_VARIABLE

if TYPE_CHECKING:
    from evalkit.scenario.model_schema import EndpointRef

READY_TIMEOUT_S = 180.0
_STOP_TIMEOUT_S = 15.0
_SHOWN_STDERR_LINES = 3


@dataclass(frozen=True)
class RunningSandbox:
    """A sandbox that is ready.

    Attributes:
        address: HOST:PORT of the gRPC server.
        model_digest: of the model that it serves; "" for one behind an endpoint.
        pid: process id of the server.
    """

    address: str
    model_digest: str
    pid: int


@contextmanager
def sandbox_process(
    served: "Path | EndpointRef",
    flow: Path | None,
    *,
    module: str = "sandbox",
    options: Sequence[str] = (),
    ready_timeout_s: float = READY_TIMEOUT_S,
) -> Iterator[RunningSandbox]:
    """Serve a model from a fresh process on a free local port for the length of the block.

    Args:
        served: bundle folder, or the endpoint of a served model.
        flow: flow folder, or None.
        module: Python module that is run.
        options: further options of `sandbox serve`.
        ready_timeout_s: how long the server may take to get ready.

    Raises:
        InputError: the server refused its input (exit code 2); the message is its own.
        IncompleteError: the server died or didn't get ready in time.
    """
    command = [sys.executable, "-m", module, "serve", *_model_arguments(served)]
    if flow is not None:
        command += ["--flow", str(flow)]
    command += ["--listen", "127.0.0.1:0", *options]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
        # An own session: Ctrl-C reaches evalkit alone, which then ends the server in order.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", OWNER_VARIABLE: str(os.getpid())},
        )
        try:
            ready = _wait_ready(process, stderr, ready_timeout_s)
            yield RunningSandbox(str(ready["address"]), str(ready.get("model_digest", "")), process.pid)
        finally:
            _stop(process)


def _model_arguments(served: "Path | EndpointRef") -> list[str]:
    if isinstance(served, Path):
        return [str(served)]
    # The key itself stays in the environment, which the server inherits.
    key = [] if served.api_key_env is None else ["--api-key-env", served.api_key_env]
    model = ["--endpoint", served.url, "--model", served.model, "--declare", served.declare]
    return ["--engine", "openai", *model, "--endpoint-timeout-s", str(served.timeout_s), *key]


def _wait_ready(process: subprocess.Popen[str], stderr: IO[str], timeout_s: float) -> dict[str, object]:
    lines: queue.Queue[str | None] = queue.Queue()
    # Reading goes on after the ready line, so that a full pipe can't stop the server.
    threading.Thread(target=_read_lines, args=(process, lines), daemon=True).start()
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            problem = f"the sandbox wasn't ready within {timeout_s:g} s"
            raise IncompleteError(f"{problem}{_last_words(stderr)}; try again on a quieter machine") from None
        if line is None:
            raise _died(process, stderr)
        try:
            ready = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(ready, dict) and "address" in ready:
            return ready


def _read_lines(process: subprocess.Popen[str], lines: "queue.Queue[str | None]") -> None:
    assert process.stdout is not None
    with process.stdout as stream:
        for line in stream:
            lines.put(line)
    lines.put(None)


def _died(process: subprocess.Popen[str], stderr: IO[str]) -> InputError | IncompleteError:
    code = process.wait()
    words = _last_words(stderr)
    if code == InputError.exit_code:
        return InputError(f"sandbox{words or ': refused its input without a word'}")
    return IncompleteError(f"the sandbox ended with exit code {code} before it was ready{words}")


def _last_words(stderr: IO[str]) -> str:
    stderr.seek(0)
    lines = [line.strip() for line in stderr if line.strip()]
    return f": {' | '.join(lines[-_SHOWN_STDERR_LINES:])}" if lines else ""


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    # Its engine child is in the same group; if the server died without ending it, it would stay behind.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
