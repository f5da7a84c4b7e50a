"""Restarts of a distributed job by its launcher: an error before the last one isn't why the job is down now.

The lines are those of PyTorch's elastic agent, which DLRover and NVIDIA's ft_launcher share.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from trainer.diagnosis.incidents import Incident
from trainer.diagnosis.plog import LogFile
from trainer.diagnosis.rulebook import RuleText, make_finding
from trainer.findings import Evidence, Finding

_RESTART = re.compile(
    r"Worker group \w+.{0,80}?(\d{1,6})/(\d{1,6})\s+attempts left; will restart worker group"
)
_RESUMED = re.compile(r"Rendezvous complete for workers")
# Each node's launcher logs the restart for itself.
_ONE_RESTART = timedelta(seconds=30)
_SHOWN = 8


@dataclass(frozen=True)
class Restart:
    """One restart of the whole job. `resumed`: when its workers had found each other again; None: no line says so."""

    when: datetime
    where: str
    attempts_left: int
    resumed: datetime | None

    @property
    def begins(self) -> datetime:
        """From when on an error belongs to the new attempt: workers of the old one log while they are ended."""
        return self.resumed or self.when


def find_restarts(files: Iterable[LogFile]) -> list[Restart]:
    """All restarts by time, those of several nodes within 30 s as one."""
    lines = [line for file in files for line in file.lines if line.time is not None]
    resumed = sorted(line.time for line in lines if line.time and _RESUMED.search(line.text))
    marks = [
        (line.time, line.where, found)
        for line in lines
        if line.time and (found := _RESTART.search(line.text))
    ]
    restarts: list[Restart] = []
    for when, where, found in sorted(marks, key=lambda mark: mark[0]):
        if restarts and when - restarts[-1].when <= _ONE_RESTART:
            continue
        restarts.append(Restart(when, where, int(found.group(1)), None))
    # A rendezvous behind the next restart is that one's.
    ends = [*(item.when for item in restarts[1:]), datetime.max]
    return [
        replace(item, resumed=next((time for time in resumed if item.when <= time < end), None))
        for item, end in zip(restarts, ends, strict=False)
    ]


def since_last_restart(incidents: Sequence[Incident], restarts: Sequence[Restart]) -> list[Incident]:
    """The incidents of the last attempt; all of them where it has none, or where nothing was restarted.

    An incident without a time counts by the last time before it in its log.
    """
    if not restarts:
        return list(incidents)
    begins = restarts[-1].begins
    latest = [
        item for item in incidents if (when := item.when or item.line.near) is not None and when >= begins
    ]
    return latest or list(incidents)


def restarts_finding(restarts: Sequence[Restart], incidents: Sequence[Incident], text: RuleText) -> Finding:
    """How often, since when the last attempt ran, how long the slowest restart took, and what ended each attempt."""
    longest = max((item.resumed - item.when for item in restarts if item.resumed is not None), default=None)
    last = restarts[-1]
    failed = any(
        (when := item.when or item.line.near) is not None and when >= last.begins for item in incidents
    )
    evidence = [
        Evidence("count", len(restarts), where=restarts[0].where),
        Evidence("last", last.when.isoformat(sep=" "), where=last.where),
        Evidence("attempts_left", last.attempts_left, where=last.where),
        Evidence("longest_until_rendezvous", longest.total_seconds() if longest is not None else None, "s"),
        Evidence("outcome", "failed again" if failed else "no error since", where=last.where),
    ]
    before = datetime.min
    for item in restarts[:_SHOWN]:
        ended = [i for i in incidents if i.when is not None and before <= i.when <= item.begins]
        first = next((i for i in ended if i.failure.role != "echo"), ended[0] if ended else None)
        if first is not None:
            evidence.append(
                Evidence("ended_by", f"{first.failure.rule}: {first.line.shown}", where=first.line.where)
            )
        before = item.begins
    return make_finding("restarts", text, evidence)
