"""Processes of a job under stress: found by what they were started with, and ended."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

WORKER = Path(__file__).with_name("worker.py")
_POLL_S, _END_S = 0.05, 20.0


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    """Its exit code; None where it takes longer than `timeout_s`."""
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None


def is_worker(pid: int, job: str) -> bool:
    """Whether the process lives (no zombie) and is a worker of this job: numbers are given anew."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return state != "Z" and job.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    """Its children, theirs, and so on."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in path.read_text().split()]
        except OSError:
            continue  # gone meanwhile
    return found + [later for child in found for later in descendants(child)]


def kill(pid: int) -> None:
    """End it at once, if it is there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def end_leftovers(job: Path) -> None:
    """End the launcher and workers that a killed supervisor left, and wait until they are gone.

    They would end by themselves within a second or two, but hold the run folder until then.

    Args:
        job: the job's folder, which stands in their command lines, as the worker's script does.
    """
    name, until = str(job.resolve()), time.monotonic() + _END_S
    while time.monotonic() < until:
        left = [
            int(path.name)
            for path in Path("/proc").glob("[0-9]*")
            if is_worker(int(path.name), name) and is_worker(int(path.name), str(WORKER))
        ]
        for pid in left:
            kill(pid)
        if not left:
            return
        time.sleep(_POLL_S)
