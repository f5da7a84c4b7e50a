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
    """End what a killed supervisor left of a job, and wait until it is gone.

    Launcher and workers would end by themselves within a second or two, but hold the run folder until then; the `tail`s by
    which msrun shows the workers' logs outlive a launcher that was killed.

    Args:
        job: the job's folder, which stands in their command lines, as the worker's script does.
    """
    name, until = str(job.resolve()), time.monotonic() + _END_S
    while time.monotonic() < until:
        left = [pid for path in Path("/proc").glob("[0-9]*") if _belongs(pid := int(path.name), name)]
        for pid in left:
            kill(pid)
        if not left:
            return
        time.sleep(_POLL_S)


def _belongs(pid: int, job: str) -> bool:
    if is_worker(pid, job) and is_worker(pid, str(WORKER)):
        return True
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    shows_a_log = any(part.startswith(f"{job}/logs-".encode()) for part in command)
    return shows_a_log and command[0].rsplit(b"/", 1)[-1] == b"tail"
