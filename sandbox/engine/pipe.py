"""The pipe between server and engine process: frames of a 4-byte length and JSON, nothing executable."""

import os
import struct
import sys
from typing import Any, BinaryIO

import orjson

_LENGTH = struct.Struct("<I")
HEADER_BYTES = _LENGTH.size

Message = dict[str, Any]


def frame(message: Message) -> bytes:
    """Encode a message."""
    body = orjson.dumps(message)
    return _LENGTH.pack(len(body)) + body


def body_length(header: bytes) -> int:
    """Length of the body that follows a header."""
    return int(_LENGTH.unpack(header)[0])


def decode(body: bytes) -> Message:
    """Decode a frame's body."""
    message: Message = orjson.loads(body)
    return message


class FrameSplitter:
    """Takes a byte stream apart into messages, whatever pieces it arrives in."""

    def __init__(self) -> None:
        """Begin with nothing read."""
        self._rest = b""

    def messages(self, data: bytes) -> list[Message]:
        """The messages that are complete with these bytes, in order."""
        data = self._rest + data if self._rest else data
        found: list[Message] = []
        at = 0
        while len(data) - at >= HEADER_BYTES:
            (length,) = _LENGTH.unpack_from(data, at)
            end = at + HEADER_BYTES + length
            if end > len(data):
                break
            found.append(decode(data[at + HEADER_BYTES : end]))
            at = end
        self._rest = data[at:]
        return found


class ChildPipe:
    """The child's end: blocking reads on stdin, writes on what was stdout."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source = source
        self._sink = sink

    @classmethod
    def take_over_stdio(cls) -> "ChildPipe":
        """Use this process's stdin and stdout; whatever else prints to stdout from now on goes to stderr."""
        sink = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        return cls(sys.stdin.buffer, sink)

    def read(self) -> Message | None:
        """The next message; None when the server is gone."""
        header = self._source.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return None
        length = body_length(header)
        body = self._source.read(length)
        return decode(body) if len(body) == length else None

    def write(self, *messages: Message) -> None:
        """Send messages, with one system call where the pipe has room."""
        data = memoryview(b"".join(map(frame, messages)))
        while data:
            data = data[self._sink.write(data) :]
