"""A server that a run started doesn't outlive the run, even one that was killed."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from evalkit.owner import OWNER_VARIABLE
from sandbox import owner

# The owner starts a server's stand-in, tells its id, and waits to be killed.
OWNER = f"""
import os, subprocess, sys, time
follow = "import asyncio; from sandbox.owner import follow_owner; asyncio.run(follow_owner(asyncio.Event()))"
child = subprocess.Popen([sys.executable, "-c", follow], env={{**os.environ, "{OWNER_VARIABLE}": str(os.getpid())}})
print("started", flush=True)
time.sleep(120)
"""


def test_the_server_ends_when_its_owner_was_killed() -> None:
    process = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGKILL)
    # The stand-in holds the other end of the pipe: it closes when both have ended.
    assert process.communicate(timeout=60)[0] == ""


@pytest.mark.parametrize(("name", "stops"), [(None, False), ("parent", False), ("1", True)])
def test_only_the_end_of_the_named_parent_stops_it(
    monkeypatch: pytest.MonkeyPatch, name: str | None, stops: bool
) -> None:
    monkeypatch.setattr(owner, "_INTERVAL_S", 0.01)
    monkeypatch.delenv(OWNER_VARIABLE, raising=False)
    if name is not None:
        monkeypatch.setenv(OWNER_VARIABLE, str(max(os.getppid(), 2)) if name == "parent" else name)
    parent = max(os.getppid(), 2)
    monkeypatch.setattr(os, "getppid", lambda: parent)

    async def stopped() -> bool:
        stop = asyncio.Event()
        following = asyncio.ensure_future(owner.follow_owner(stop))
        await asyncio.sleep(0.1)
        following.cancel()
        return stop.is_set()

    assert asyncio.run(stopped()) == stops
