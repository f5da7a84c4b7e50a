"""The journal: evidence as it comes, append-only JSON lines, on disk before the work goes on."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from evalkit.runs.records import SampleRecord, TurnRecord


class Journal:
    """Appends records to a JSON-lines file; each batch is flushed and fsynced, so a kill loses at most one batch."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._stream = path.open("ab")

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def append(self, records: Sequence[SampleRecord | TurnRecord]) -> None:
        """Write one batch of records."""
        for record in records:
            name = "sample" if isinstance(record, SampleRecord) else "turn"
            line: dict[str, Any] = {"record": name, **asdict(record)}
            self._stream.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        self._stream.flush()
        os.fsync(self._stream.fileno())
