"""Read the lines of training, CANN and HCCL logs that carry a time or an error: one shape for all of them.

A line's date may lack the year (vLLM, c10d): it is taken from the nearest dated line of the same file, else from the
file's own time. Times are local to whoever wrote them; no time zone is assumed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from evalkit.errors import InputError
from trainer.ranks import MOST_RANKS
from trainer.regular_file import require_regular, shown_path, why_not_text

Level = Literal["error", "warning", "info"]
_LONGEST_LINE = 20_000
_LONGEST_TEXT = 400
# Another year is a damaged date; times before and after a believed one can be reckoned with.
_FIRST_YEAR, _LAST_YEAR = 1980, 2200

_DATED = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)[-T ](?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
    r"(?:[.,](?P<fraction>\d{1,9}(?:\.\d{1,3})?))?"
)
_SHORT = re.compile(
    r"(?:ERROR|WARNING|INFO|DEBUG|CRITICAL) (?P<month>\d\d)-(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
)
# c10d in brackets, the elastic agent at the start of the line. The month may lack its leading zero: W116 is
# 16 January and W1116 16 November.
_GLOG = re.compile(
    r"(?:^|\[)(?P<level>[IWEF])(?P<month>\d{1,2}?)(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
    r"(?:\.(?P<fraction>\d{1,9}))?"
)
_LEVEL = re.compile(r"\[(ERROR|CRITICAL|WARNING|INFO|EVENT|DEBUG)\]|\b(ERROR|CRITICAL|WARNING|INFO|DEBUG)\b")
_PLOG_HEAD = re.compile(r"\[\w+\]\s*\w+\((?P<pid>\d{1,18})(?::\d+)?,")
_PID = re.compile(r"\[PID: (\d{1,18})\]|\(PID:(\d{1,18})|\bpid=(\d{1,18})")
_RANK = re.compile(r"\bRankID:(\d{1,9})|\[rank(\d{1,9})\]|\blocalUserrank\[(\d{1,9})\]|\brank=(\d{1,9})\b")
_CODE = re.compile(r"\b(E[A-Z]\d{4})\b")
_EXCEPTION = re.compile(r"^(?:\[rank\d+\]:\s*)?(?P<name>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt))\b:?")
_FILE_RANK = re.compile(r"(?:^|[_\-.])(?:rank|worker|device)[_\-]?(\d{1,9})(?:[_\-.]|$)", re.IGNORECASE)


@dataclass(frozen=True)
class LogLine:
    """One line that carries a time, an error code or an error level.

    `time` None: the line has none; `near` is then the last time before it in the file.
    """

    path: Path
    number: int
    text: str
    time: datetime | None = None
    near: datetime | None = None
    year_inferred: bool = False
    level: Level | None = None
    pid: int | None = None
    rank: int | None = None
    code: str | None = None
    exception: str | None = None

    @property
    def where(self) -> str:
        """file:line."""
        return f"{self.path}:{self.number}"

    @property
    def when(self) -> datetime | None:
        """Its own time, else the last one before it."""
        return self.time or self.near

    @property
    def shown(self) -> str:
        """The text, short enough for a report."""
        text = " ".join(self.text.split())
        return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


@dataclass(frozen=True)
class LogFile:
    """The marked lines of a file, and what they say together.

    `started` is the first time, unless an error is all that the file begins with.
    """

    path: Path
    lines: tuple[LogLine, ...]
    rank: int | None
    started: datetime | None
    last: datetime | None
    beyond: int | None = None
    """A number that is told as a rank and beyond MOST_RANKS, so that it isn't taken as one."""


def read_log(path: Path) -> LogFile:
    """Read a log file; bytes that aren't UTF-8 are replaced, not refused.

    Raises:
        InputError: missing, a folder, no regular file, unreadable, compressed or no text in UTF-8.
    """
    require_regular(path)
    named = Path(shown_path(path))
    try:
        written = datetime.fromtimestamp(path.stat().st_mtime)
        with path.open(encoding="utf-8-sig", errors="replace") as stream:
            raw = list(_marked(named, stream))
        if not raw and (why := why_not_text(path)) and why != "empty":
            raise InputError(f"{path}: {why}")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; check the path") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, a log file is needed") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    lines = tuple(_with_near(_with_years(raw, written)))
    timed = [line for line in lines if line.time is not None]
    started = timed[0].time if timed and timed[0].level != "error" else None
    last = max((line.time for line in timed if line.time is not None), default=None)
    told = [_named_rank(path), *(line.rank for line in lines)]
    beyond = next((rank for rank in told if rank is not None and rank >= MOST_RANKS), None)
    if beyond is not None:
        lines = tuple(replace(line, rank=_believed(line.rank)) for line in lines)
    return LogFile(named, lines, rank_of(path, lines), started, last, beyond)


def rank_of(path: Path, lines: tuple[LogLine, ...] = ()) -> int | None:
    """The rank of a file: from its name or its folder's, else the only rank that its lines name."""
    named = _believed(_named_rank(path))
    if named is not None:
        return named
    ranks = {line.rank for line in lines if line.rank is not None}
    return ranks.pop() if len(ranks) == 1 else None


def _named_rank(path: Path) -> int | None:
    for name in (path.stem, path.parent.name):
        found = _FILE_RANK.search(name)
        if found:
            return int(found.group(1))
    return None


def _believed(rank: int | None) -> int | None:
    return rank if rank is not None and rank < MOST_RANKS else None


def parse_time(text: str) -> datetime | None:
    """The full date and time that stands in a line; None where there is none or it isn't a date."""
    found = _DATED.search(text)
    return _time(found, int(found.group("year"))) if found else None


@dataclass(frozen=True)
class _Raw:
    line: LogLine
    short: re.Match[str] | None


def _marked(path: Path, stream: Iterator[str]) -> Iterator[_Raw]:
    for number, text in enumerate(stream, start=1):
        text = text[:_LONGEST_LINE].rstrip("\r\n")
        dated = _DATED.search(text)
        short = None if dated else (_SHORT.search(text) or _GLOG.search(text))
        time = _time(dated, int(dated.group("year"))) if dated else None
        code = _CODE.search(text)
        exception = _EXCEPTION.match(text)
        level = _level(text, short)
        if time is None and short is None and code is None and exception is None and level != "error":
            continue
        head = _PLOG_HEAD.search(text)
        pid = head.group("pid") if head else _first(_PID.search(text))
        rank = _first(_RANK.search(text))
        yield _Raw(
            LogLine(
                path,
                number,
                text,
                time,
                level="error" if level is None and (code or exception) else level,
                pid=int(pid) if pid else None,
                rank=int(rank) if rank else None,
                code=code.group(1) if code else None,
                exception=exception.group("name") if exception else None,
            ),
            short,
        )


def _with_years(raw: list[_Raw], written: datetime) -> Iterator[LogLine]:
    dated = [(at, item.line.time) for at, item in enumerate(raw) if item.line.time is not None]
    for at, item in enumerate(raw):
        if item.short is None:
            yield item.line
            continue
        near = min(dated, key=lambda pair: abs(pair[0] - at), default=None)
        anchor = near[1] if near else written
        # New Year between the two lines: the nearest of three years is meant.
        candidates = [_time(item.short, anchor.year + shift) for shift in (-1, 0, 1)]
        if near is None:
            # Nothing is written after the file's own time.
            candidates = [time for time in candidates if time and time <= written + timedelta(days=1)]
        known = [time for time in candidates if time is not None]
        time = min(known, key=lambda value: abs(value - anchor), default=None)
        yield replace(item.line, time=time, year_inferred=time is not None)


def _with_near(lines: Iterator[LogLine]) -> Iterator[LogLine]:
    last: datetime | None = None
    for line in lines:
        if line.time is None:
            yield replace(line, near=last)
        else:
            last = line.time
            yield line


def _time(found: re.Match[str], year: int) -> datetime | None:
    if not _FIRST_YEAR <= year <= _LAST_YEAR:
        return None
    parts = found.groupdict()
    fraction = (parts.get("fraction") or "0").replace(".", "")
    micro = int(fraction[:6].ljust(6, "0"))
    month, day, hour, minute, second = (
        int(parts[name]) for name in ("month", "day", "hour", "minute", "second")
    )
    try:
        return datetime(year, month, day, hour, minute, second, micro)
    except ValueError:
        return None


def _level(text: str, short: re.Match[str] | None) -> Level | None:
    if short is not None and "level" in short.groupdict():
        return {"E": "error", "F": "error", "W": "warning"}.get(short.group("level"), "info")  # type: ignore[return-value]
    word = _first(_LEVEL.search(text))
    if word in ("ERROR", "CRITICAL"):
        return "error"
    if word is None:
        return None
    return "warning" if word == "WARNING" else "info"


def _first(found: re.Match[str] | None) -> str | None:
    return next((group for group in found.groups() if group), None) if found else None
