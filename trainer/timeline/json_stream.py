"""The events of a Chrome-trace JSON file, a block at a time, in bounded memory.

A block of the file is cut after an event and parsed at once. That a cut stands between two events, and not
inside one, needs no parser of our own: `[` + everything up to the cut + `]` is valid JSON only then. A block
that doesn't parse is read event by event: what can be read is kept, the rest is counted with its byte offset.
"""

import json
import re
from collections.abc import Callable, Iterator
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from trainer.timeline.gzip_stream import damage_of, open_bytes

Event = dict[str, Any]
# (kind, example, count) → the quarantine table
Reject = Callable[[str, str, int], None]

_BLOCK_BYTES = 1 << 20
# No single event is larger: beyond it the block is taken to be damaged.
_MAX_EVENT_BYTES = 16 << 20
_HEADER_BYTES = 64 << 20
_TRIES = 8
_MOST_CLOSINGS = 64

_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_CLOSING = re.compile(rb"\}\s*(?=\])")
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
# From 2^43 µs on a float64's step is wider than a nanosecond: such numbers are quoted before parsing, so that no digit
# is lost.
_LONG_NUMBER = re.compile(rb'"(ts|dur)"(\s*):(\s*)((?:\d{14,}|9\d{12}|8[789]\d{11})\.\d+)')


class EventFile:
    """One trace file: iterate over `batches()` once, then `header` holds the keys beside the events."""

    def __init__(self, path: Path, reject: Reject) -> None:
        """Remember the file; nothing is read yet."""
        self.path = path
        self.header: dict[str, Any] = {}
        self._reject = reject
        self._stream: BufferedReader
        self._buffer = b""
        self._offset = 0  # of the buffer's first byte in the (uncompressed) file
        self._ended = False

    def batches(self) -> Iterator[list[Event]]:
        """Lists of events, in file order."""
        with open_bytes(self.path) as self._stream:
            if self._find_events():
                yield from self._events()

    def _fill(self, size: int = _BLOCK_BYTES) -> None:
        if self._ended:
            return
        data = self._stream.read(size)
        self._buffer += data
        self._ended = not data

    def _drop(self, size: int) -> None:
        self._buffer = self._buffer[size:]
        self._offset += size

    def _find_events(self) -> bool:
        """Move to the first event; False where there are none."""
        self._fill()
        while not self._buffer.strip() and not self._ended:
            self._fill()
        text = self._buffer.lstrip(b"\xef\xbb\xbf \t\r\n")
        self._drop(len(self._buffer) - len(text))
        if text.startswith(b"["):
            self._drop(1)
            return True
        found = _EVENTS_KEY.search(self._buffer)
        while found is None and not self._ended and len(self._buffer) < _HEADER_BYTES:
            self._fill()
            found = _EVENTS_KEY.search(self._buffer)
        if found is None:
            return False
        self._keep_header(self._buffer[1 : found.start()])
        self._drop(found.end())
        return True

    def _keep_header(self, keys: bytes) -> None:
        keys = keys.strip().strip(b",")
        try:
            self.header.update(_tolerant(b"{" + keys + b"}")[0])
        except ValueError as error:
            self._reject("malformed_header", str(error), 1)

    def _events(self) -> Iterator[list[Event]]:
        while True:
            self._fill()
            batch, size, closed = self._whole_events()
            if batch is None and (self._ended or len(self._buffer) > _MAX_EVENT_BYTES):
                batch, size, closed = self._salvage()
            if batch is not None:
                self._drop(size)
                if batch:
                    yield batch
            if closed:
                self._read_trailer()
                return
            if self._ended and not self._buffer:
                return

    def _whole_events(self) -> tuple[list[Event] | None, int, bool]:
        """(events, bytes used, array closed) of the longest readable part of the buffer, or None for the events."""
        buffer = self._buffer
        start = max(0, len(buffer) - _BLOCK_BYTES)
        cuts = list(_BETWEEN.finditer(buffer, start))[-_TRIES:]
        for cut in reversed(cuts):
            events = _parse(buffer[: cut.start() + 1])
            if events is not None:
                return events, cut.end(), False
        for cut in list(_CLOSING.finditer(buffer, start))[:_TRIES]:
            events = _parse(buffer[: cut.start() + 1])
            if events is not None:
                return events, cut.end(), True
        if self._ended and buffer.lstrip().startswith(b"]"):
            return [], len(buffer) - len(buffer.lstrip()), True
        if self._ended:
            tail = buffer.rstrip().rstrip(b",")
            events = _parse(tail) if tail else []
            if events is not None:
                if tail:
                    self._reject("broken_tail", f"byte {self._offset + len(tail)}: the array isn't closed", 1)
                return events, len(buffer), False
        return None, 0, False

    def _salvage(self) -> tuple[list[Event], int, bool]:
        """Read the buffer event by event: (events, bytes used, array closed)."""
        buffer, events, start = self._buffer, [], 0
        cuts = list(_BETWEEN.finditer(buffer))
        lost_from: int | None = None
        index = 0
        while index < len(cuts):
            for ahead in range(index, min(index + _TRIES, len(cuts))):
                event, repaired = _one(buffer[start : cuts[ahead].start() + 1])
                if event is not None:
                    self._lose(lost_from, start)
                    self._repaired(repaired, start)
                    lost_from = None
                    events.append(event)
                    index = ahead
                    break
            else:
                lost_from = start if lost_from is None else lost_from
            start = cuts[index].end()
            index += 1
        if not self._ended:
            self._lose(lost_from, start)
            return events, start, False
        return self._last_event(events, start if lost_from is None else lost_from)

    def _last_event(self, events: list[Event], start: int) -> tuple[list[Event], int, bool]:
        """The event before the array's end, if there is one; what follows may be keys beside the events."""
        buffer = self._buffer
        for close in islice(_CLOSING.finditer(buffer, start), _MOST_CLOSINGS):
            event, repaired = _one(buffer[start : close.start() + 1])
            if event is not None:
                events.append(event)
                self._repaired(repaired, start)
                return events, close.end(), True
        lost = buffer[start:]
        if lost.strip().startswith(b"]"):
            return events, start, True
        # After a bad event the next good one is found at its own beginning, so that a tail holds no good event.
        why = damage_of(self._stream) or "the file ends inside an event"
        self._reject(
            "broken_tail",
            f"byte {self._offset + start}: {why}, {len(lost)} bytes can't be read",
            max(1, lost.count(b'"ph"')),
        )
        return events, len(buffer), False

    def _lose(self, start: int | None, end: int) -> None:
        if start is not None:
            lost = self._buffer[start:end]
            self._reject("malformed_event", f"byte {self._offset + start}", max(1, lost.count(b'"ph"')))

    def _repaired(self, repaired: bool, start: int) -> None:
        if repaired:
            self._reject("repaired_text", f"byte {self._offset + start}", 1)

    def _read_trailer(self) -> None:
        while not self._ended and len(self._buffer) < _HEADER_BYTES:
            self._fill()
        trailer = self._buffer.strip()[1:].strip()
        self._buffer = b""
        if trailer.startswith(b",") and trailer.endswith(b"}"):
            self._keep_header(trailer[1:-1])


def _parse(elements: bytes) -> list[Event] | None:
    try:
        parsed = orjson.loads(b"[" + _LONG_NUMBER.sub(rb'"\1"\2:\3"\4"', elements) + b"]")
    except orjson.JSONDecodeError:
        return None
    return parsed if isinstance(parsed, list) else None


def _one(element: bytes) -> tuple[Event | None, bool]:
    """(event or None, whether it had to be read tolerantly)."""
    try:
        event, repaired = _tolerant(_LONG_NUMBER.sub(rb'"\1"\2:\3"\4"', element))
    except ValueError:
        return None, False
    # A fragment of an event can be valid JSON too; only events have a phase.
    return (event, repaired) if isinstance(event, dict) and "ph" in event else (None, False)


def _tolerant(text: bytes) -> tuple[Any, bool]:
    try:
        return orjson.loads(text), False
    except orjson.JSONDecodeError:
        try:
            return json.loads(text.decode("utf-8", "replace"), strict=False), True
        except RecursionError:
            raise ValueError("nested too deeply") from None
