"""The journal: evidence as it comes, append-only JSON lines, on disk before the work goes on.

A kill loses at most the batch in flight. Whoever opens a journal again first cuts off a torn last line; a broken line
anywhere else is damage that nobody here did, and is named.
"""

import base64
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import orjson

from evalkit.errors import InputError
from evalkit.runs.evidence_io import sample_from_row, turn_from_row
from evalkit.runs.records import SampleRecord, TurnRecord, WindowRecord

if TYPE_CHECKING:
    from evalkit.scoring.text_records import TokenRows

    Record = SampleRecord | TurnRecord | WindowRecord | TokenRows

_NAMES = {"SampleRecord": "sample", "TurnRecord": "turn", "WindowRecord": "window", "TokenRows": "tokens"}


class Journal:
    """Appends records to a JSON-lines file; each batch is flushed and fsynced."""

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

    def append(self, records: "Sequence[Record]") -> None:
        """Write one batch of records."""
        for record in records:
            line = {"record": _NAMES[type(record).__name__], **_to_json(record)}
            self._stream.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        self._stream.flush()
        os.fsync(self._stream.fileno())


@dataclass
class JournalContent:
    """What the journals of one model hold; of records of one thing the last one counts.

    Attributes:
        samples: by (kind, id).
        turns: by (dialogue, trial, turn).
        windows: of texts that may not be finished, by the text's digest.
        tokens: where the token rows of a text begin in their journal, by its id.
    """

    samples: dict[tuple[str, str], SampleRecord] = field(default_factory=dict)
    turns: dict[tuple[str, int, int], TurnRecord] = field(default_factory=dict)
    windows: dict[str, list[WindowRecord]] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)


def reopen_journals(paths: Sequence[Path]) -> JournalContent:
    """Read journals that an interrupted run left; a torn last line is cut off, so that appending goes on whole.

    Raises:
        InputError: a broken line that isn't the last one; its file and number are named.
    """
    content = JournalContent()
    for path in paths:
        if path.is_file():
            for number, (offset, line) in enumerate(_whole_lines(path), start=1):
                try:
                    _take(line, offset, content)
                except (KeyError, TypeError, ValueError) as error:
                    raise InputError(
                        f"{path}:{number}: not a record of this version of evalkit ({error!r}); the journal is damaged"
                    ) from None
    return content


def read_token_rows(path: Path, offset: int) -> "TokenRows":
    """The token rows that begin at `offset` of a journal."""
    from evalkit.scoring.text_records import TokenRows

    with path.open("rb") as stream:
        stream.seek(offset)
        line = orjson.loads(stream.readline())
    return TokenRows(**_from_json(line))


def _whole_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    size, offset, number = path.stat().st_size, 0, 0
    with path.open("r+b") as stream:
        while data := stream.readline():
            number += 1
            end = offset + len(data)
            line = _parse(data) if data.endswith(b"\n") else None
            if line is None:
                if end < size:
                    raise InputError(
                        f"{path}:{number}: broken line; only the last one can be torn by a kill, so the journal is "
                        "damaged: start the run anew"
                    )
                stream.truncate(offset)
                os.fsync(stream.fileno())
                return
            yield offset, line
            offset = end


def _parse(data: bytes) -> dict[str, Any] | None:
    try:
        line = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return line if isinstance(line, dict) else None


def _take(line: dict[str, Any], offset: int, content: JournalContent) -> None:
    kind = line.pop("record")
    if kind == "sample":
        sample = sample_from_row(line)
        content.samples[sample.kind, sample.sample_id] = sample
        content.windows.pop(sample.digest, None)
    elif kind == "turn":
        turn = turn_from_row(line)
        content.turns[turn.dialogue_id, turn.trial, turn.turn_index] = turn
    elif kind == "window":
        window = WindowRecord(**_from_json(line))
        content.windows.setdefault(window.digest, []).append(window)
    elif kind == "tokens":
        content.tokens[line["sample_id"]] = offset
    else:
        raise ValueError(f"record {kind!r}")


def _to_json(record: "Record") -> dict[str, Any]:
    """The fields of a record; arrays as {"dtype", "base64"}, exact to the bit; orjson knows nested dataclasses."""
    named = {item.name: getattr(record, item.name) for item in fields(record)}
    return {name: _pack(value) if hasattr(value, "dtype") else value for name, value in named.items()}


def _pack(array: Any) -> dict[str, str]:
    return {"dtype": array.dtype.str, "base64": base64.b64encode(array.tobytes()).decode()}


def _from_json(line: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    return {
        name: np.frombuffer(base64.b64decode(value["base64"]), dtype=value["dtype"])
        if isinstance(value, dict)
        else value
        for name, value in line.items()
        if name != "record"
    }
