"""The logs of a run: JSON Lines that a resumed run continues without gaps or doubles."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from evalkit.errors import InputError
from evalkit.files import write_bytes_atomic

LOG, EVALUATIONS, SHAPES, BEST = "log.jsonl", "evaluations.jsonl", "shapes.jsonl", "best.json"
SCENARIO = "scenario.jsonl"


class JsonLines:
    """A file of records, one a line, each with its `step`."""

    def __init__(self, path: Path, keep_until: int) -> None:
        """Open for appending; lines of steps after `keep_until`, and a torn last one, are cut off."""
        self.path = path
        write_bytes_atomic(path, b"".join(line for line, _ in _records(path, keep_until)))
        self._stream = path.open("ab", buffering=0)

    def write(self, entry: dict[str, Any]) -> None:
        """Append one record; NaN becomes null."""
        line = orjson.dumps(entry) + b"\n"
        while line:
            line = line[self._stream.write(line) or 0 :]

    def sync(self) -> None:
        """Wait until everything written is on the disk."""
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


@dataclass(frozen=True)
class RunLogs:
    """The logs that a process writes: none of them where another process of the run does.

    Attributes:
        log: a record a step.
        evaluations: a record a validation.
        shapes: in debug mode, a record a layer.
        scenario: where a scenario is measured, a record an evaluation.
    """

    log: JsonLines | None = None
    evaluations: JsonLines | None = None
    shapes: JsonLines | None = None
    scenario: JsonLines | None = None

    def sync(self) -> None:
        """Wait until log and evaluations are on the disk."""
        for lines in (self.log, self.evaluations, self.scenario):
            if lines is not None:
                lines.sync()


@contextmanager
def open_logs(out: Path, steps: int, *, shapes: bool, scenario: bool) -> Iterator[RunLogs]:
    """The logs of a run that goes on after `steps` steps, cut back to them, for the length of a block.

    Raises:
        InputError: the log doesn't hold each of those steps.
    """
    check_complete(out / LOG, steps)
    files = {"log": LOG, "evaluations": EVALUATIONS}
    files |= {"shapes": SHAPES} if shapes else {}
    files |= {"scenario": SCENARIO} if scenario else {}
    with ExitStack() as stack:
        opened = {
            name: stack.enter_context(closing(JsonLines(out / file, steps))) for name, file in files.items()
        }
        yield RunLogs(**opened)


def check_complete(path: Path, steps: int) -> None:
    """Whether the log holds each of the first `steps` steps once, in order.

    Raises:
        InputError: names the first step that is missing or stands twice.
    """
    found = [step for _, step in _records(path, steps)]
    if found != list(range(1, steps + 1)):
        wrong = next((n for n, step in enumerate(found, start=1) if step != n), len(found) + 1)
        raise InputError(
            f"{path}:{wrong}: step {wrong} is missing or out of place; a resumed run can't continue this log, "
            "restore it or train into another folder"
        )


def _records(path: Path, until: int) -> Iterator[tuple[bytes, int]]:
    """Lines and their steps, in order, up to step `until`; behind them anything may stand, whole or not."""
    if until == 0 or not path.exists():
        return
    broken: tuple[int, bytes] | None = None
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            step = int(orjson.loads(line)["step"])
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            broken = broken or (number, line)
            continue
        if step > until:
            return
        if broken is not None:
            raise InputError(f"{path}:{broken[0]}: not a record: {broken[1][:40]!r}; restore the file")
        yield line + b"\n", step


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """Make the run folder, and keep other runs out of it for the length of a block.

    The claim lies on the open folder, so that a killed process leaves none behind.

    Raises:
        InputError: another run works in the folder, or it isn't one.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file, a run folder is needed; choose another --out")
    fresh = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise InputError(f"{out}: another run works in this folder; wait for it or end it first") from None
    try:
        yield
    finally:
        os.close(descriptor)
        if fresh and not any(out.iterdir()):
            out.rmdir()


@contextmanager
def storing(out: Path) -> Iterator[None]:
    """Within the block a disk that refuses (full, read-only, gone) is one clear line.

    Raises:
        InputError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{error.filename or out}: cannot be written ({error.strerror or error}); make room or choose another disk; "
            "earlier checkpoints are whole, --resume goes on from the last one"
        ) from None
