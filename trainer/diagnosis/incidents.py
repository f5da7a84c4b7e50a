"""Errors in logs as incidents: lines of one process at one time belong together, and each incident has one name."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Literal

from pydantic import field_validator

from evalkit.yaml_source import load_yaml
from trainer.diagnosis.plog import LogFile, LogLine
from trainer.diagnosis.rulebook import RuleText, Strict, rules_path

Role = Literal["cause", "symptom", "echo"]
_ONE_INCIDENT = timedelta(seconds=1)


class Failure(Strict):
    """How a kind of failure is recognised."""

    rule: str
    role: Role
    codes: tuple[str, ...]
    pattern: str

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        re.compile(pattern)
        return pattern


class FailureBook(Strict):
    """All of rules/distributed.yaml."""

    failures: tuple[Failure, ...]
    connect_timeout_s: int
    exec_timeout_s: int
    heartbeat_s: int
    rules: dict[str, RuleText]


@lru_cache(maxsize=1)
def failure_book() -> FailureBook:
    """The failures of this package."""
    return load_yaml(rules_path("distributed"), FailureBook)


@dataclass(frozen=True)
class Incident:
    """Error lines of one process at one time; `line` is the one that says most."""

    line: LogLine
    failure: Failure
    lines: tuple[LogLine, ...]
    rank: int | None

    @property
    def when(self) -> datetime | None:
        """The time of its first line that has one."""
        return next((line.when for line in self.lines if line.when is not None), None)

    @property
    def who(self) -> str:
        """The process, in words."""
        if self.rank is not None:
            return f"rank {self.rank}"
        return f"process {self.line.pid}" if self.line.pid is not None else self.line.path.name


def find_incidents(files: Iterable[LogFile]) -> list[Incident]:
    """All incidents in the order of their times; those without a time come last, in the order of the files."""
    incidents = [incident for file in files for incident in _of_file(file)]
    timed = [item for item in incidents if item.when is not None]
    timed.sort(key=lambda item: item.when or datetime.max)
    return timed + [item for item in incidents if item.when is None]


def name_failure(line: LogLine) -> Failure:
    """The first failure of the book that fits a line; a known code decides against patterns of other codes."""
    book = failure_book()
    known = line.code is not None and any(line.code in failure.codes for failure in book.failures)
    for failure in book.failures:
        if line.code is not None and line.code in failure.codes:
            return failure
        if (not known or not failure.codes) and re.search(failure.pattern, line.text):
            return failure
    raise AssertionError("the book's last failure fits every line")


def _of_file(file: LogFile) -> list[Incident]:
    ranks = {line.pid: line.rank for line in file.lines if line.pid and line.rank is not None}
    open_ones: dict[tuple[str, int] | None, list[LogLine]] = {}
    closed: list[list[LogLine]] = []
    process: tuple[str, int] | None = None
    for line in file.lines:
        if line.level != "error":
            continue
        # A line that doesn't name its process belongs to the one before it.
        rank = line.rank if line.rank is not None else ranks.get(line.pid or 0)
        if rank is not None:
            process = ("rank", rank)
        elif line.pid is not None:
            process = ("pid", line.pid)
        group = open_ones.get(process)
        if group is None or _apart(group, line):
            open_ones[process] = group = []
            closed.append(group)
        group.append(line)
    return [_incident(group, file) for group in closed]


def _apart(group: list[LogLine], line: LogLine) -> bool:
    last = next((item.when for item in reversed(group) if item.when is not None), None)
    return last is not None and line.time is not None and abs(line.time - last) > _ONE_INCIDENT


def _incident(lines: list[LogLine], file: LogFile) -> Incident:
    order = {failure.rule: at for at, failure in enumerate(failure_book().failures)}
    named = [(name_failure(line), line) for line in lines]
    failure, line = min(named, key=lambda pair: (pair[0].role == "echo", order[pair[0].rule]))
    ranks = [item.rank for item in lines if item.rank is not None]
    return Incident(line, failure, tuple(lines), ranks[0] if ranks else file.rank)
