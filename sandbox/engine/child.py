"""The engine's process as the server sees it: what it says, and its end."""

import asyncio
import contextlib
from asyncio.subprocess import Process
from collections.abc import AsyncIterator

from sandbox.engine.pipe import HEADER_BYTES, FrameSplitter, Message, body_length, decode

_READ_BYTES = 65536


async def read(process: Process) -> Message | None:
    """The engine's next message; None where it ended."""
    assert process.stdout is not None
    try:
        header = await process.stdout.readexactly(HEADER_BYTES)
        return decode(await process.stdout.readexactly(body_length(header)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def messages(process: Process) -> AsyncIterator[Message]:
    """What the engine says until it ends; all that lies in the pipe is taken at once."""
    assert process.stdout is not None
    frames = FrameSplitter()
    with contextlib.suppress(ConnectionError):
        while data := await process.stdout.read(_READ_BYTES):
            for message in frames.messages(data):
                yield message


async def kill(process: Process) -> None:
    """Kill it, stopped or not, and wait for its end."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


def exit_text(code: int) -> str:
    """How a process ended, for people."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"
