"""Why a distributed job failed, from the logs of its processes: the first error wins, echoes don't count."""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from trainer.diagnosis.incidents import FailureBook, Incident, failure_book, find_incidents
from trainer.diagnosis.log_files import read_logs
from trainer.diagnosis.plog import LogFile
from trainer.diagnosis.restarts import Restart, find_restarts, restarts_finding, since_last_restart
from trainer.diagnosis.rulebook import make_finding
from trainer.findings import Evidence, Finding, Rival
from trainer.ranks import MOST_RANKS

_TIMEOUT = re.compile(r"timeout\[(\d{1,7})\]|HCCL_CONNECT_TIMEOUT\s*[=:]\s*(\d{1,7})")
_WORLD = re.compile(
    r"\b(?:RANK_SIZE|MS_WORKER_NUM|WORLD_SIZE|rankSize|world_size|rank_size)\s*[=:]\s*(\d{1,6})\b"
)
_PEERS = re.compile(r"(?:dst_rank|remoteRank|remoteUserrank)\[(\d{1,6})\]")
_ADDRESSES = {
    "local_address": re.compile(r"localIpAddr\[([^\]]+)\]"),
    "peer_address": re.compile(r"(?:remote_ip_addr|remoteIpAddr)\[([^\]]+)\]"),
}
_WAITING = frozenset(
    {"socket_timeout", "remote_rank_silent", "transport_init", "execution_timeout", "worker_lost"}
)
_STOPPED_EARLY = timedelta(seconds=60)
_SHOWN = 8


@dataclass(frozen=True)
class DistributedReport:
    """What the logs say. `missing_ranks` have no log at all; `skipped`: files that weren't read, and why."""

    findings: tuple[Finding, ...]
    files: tuple[Path, ...]
    ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...]
    skipped: tuple[tuple[Path, str], ...]


@dataclass(frozen=True)
class _Logs:
    files: list[LogFile]
    incidents: list[Incident]
    ranks: list[int]
    missing: list[int]
    timeout_s: int
    unread: list[tuple[Path, str]]
    unread_ranks: set[int]


def diagnose_distributed(folder: Path | str) -> DistributedReport:
    """Read every log below a folder (or one file) and name the failure.

    Raises:
        InputError: no such folder, or no log in it that can be read.
    """
    found = read_logs(Path(folder))
    files = found.files
    everything = find_incidents(files)
    restarts = find_restarts(files)
    incidents = since_last_restart(everything, restarts)
    ranks = sorted(_ranks(files))
    missing = [rank for rank in _missing(files, ranks) if rank not in found.unread_ranks]
    logs = _Logs(
        files, incidents, ranks, missing, _timeout_s(files), found.unread, found.unread_ranks - set(ranks)
    )
    findings = (*_findings(logs), *_restarts(restarts, everything))
    paths = tuple(file.path for file in files)
    skipped = (*found.unread, *found.skipped)
    return DistributedReport(findings, paths, tuple(ranks), tuple(missing), skipped)


def first_failure(incidents: Sequence[Incident]) -> Incident | None:
    """The incident that explains the others: the first by time that isn't an echo.

    An exception without any time goes before a mere symptom: ranks that wait can't have made it.
    """
    real = [item for item in incidents if item.failure.role != "echo"]
    if not real:
        return incidents[0] if incidents else None
    first = real[0]
    if first.failure.role == "symptom":
        untimed = [item for item in real if item.when is None and item.failure.role == "cause"]
        return untimed[0] if untimed else first
    return first


def _findings(logs: _Logs) -> Iterator[Finding]:
    book = failure_book()
    root = first_failure(logs.incidents)
    if root is None:
        if not (stopped := list(_stopped(logs, book))) and not logs.unread:
            yield make_finding(
                "nothing_found", book.rules["nothing_found"], [Evidence("files", len(logs.files))]
            )
        yield from stopped
    else:
        yield _root(root, logs, book)
        if root.failure.rule in _WAITING:
            yield from _waiting(root, logs, book)
        yield from _stopped(logs, book)
    if logs.unread:
        evidence = [Evidence("count", len(logs.unread)), Evidence("read", len(logs.files))]
        evidence += [Evidence("file", why, where=str(path)) for path, why in logs.unread[:_SHOWN]]
        if logs.unread_ranks:
            evidence.append(Evidence("ranks", _list(sorted(logs.unread_ranks))))
        yield make_finding("logs_not_read", book.rules["logs_not_read"], evidence)
    beyond = [file for file in logs.files if file.beyond is not None]
    if beyond:
        evidence = [Evidence("count", len(beyond)), Evidence("highest", MOST_RANKS - 1)]
        evidence += [Evidence("rank", file.beyond, where=str(file.path)) for file in beyond[:_SHOWN]]
        yield make_finding("rank_beyond_limit", book.rules["rank_beyond_limit"], evidence)
    if logs.missing:
        yield make_finding(
            "missing_ranks", book.rules["missing_ranks"], [Evidence("ranks", _list(logs.missing))]
        )


def _restarts(restarts: list[Restart], incidents: list[Incident]) -> Iterator[Finding]:
    if restarts:
        yield restarts_finding(restarts, incidents, failure_book().rules["restarts"])


def _root(root: Incident, logs: _Logs, book: FailureBook) -> Finding:
    evidence = [
        Evidence("message", root.line.shown, where=root.line.where),
        Evidence("process", root.who),
        Evidence("time", root.when.isoformat(sep=" ") if root.when else None, where=root.line.where),
    ]
    if root.line.code:
        evidence.append(Evidence("code", root.line.code))
    if root.line.year_inferred:
        evidence.append(Evidence("year", "inferred from the neighbouring lines or the file's time"))
    evidence += _peer(root)
    later = [item for item in logs.incidents if item is not root and item.failure.role != "echo"]
    evidence.append(Evidence("later_errors", len(later)))
    waited = _seconds_to_timeout(root, later)
    if waited is not None:
        evidence.append(Evidence("seconds_until_the_timeout", waited, "s"))
        evidence.append(Evidence("connect_timeout", logs.timeout_s, "s"))
    if root.failure.rule in _WAITING and root.when is not None:
        limits = {"execution_timeout": book.exec_timeout_s, "worker_lost": book.heartbeat_s}
        limit = limits.get(root.failure.rule, logs.timeout_s)
        began = root.when - timedelta(seconds=limit)
        evidence.append(Evidence("waiting_since_about", began.isoformat(sep=" ")))
    return make_finding(
        root.failure.rule, book.rules[root.failure.rule], evidence, rivals=_rivals(root, later)
    )


def _peer(root: Incident) -> list[Evidence]:
    text = root.line.text
    evidence = [Evidence("peer_rank", int(found.group(1))) for found in [_PEERS.search(text)] if found]
    for name, pattern in _ADDRESSES.items():
        if found := pattern.search(text):
            evidence.append(Evidence(name, found.group(1)))
    return evidence


def _seconds_to_timeout(root: Incident, later: list[Incident]) -> float | None:
    waits = [item for item in later if item.failure.rule in _WAITING and item.when is not None]
    if root.failure.role != "cause" or root.when is None or not waits:
        return None
    first = min(item.when for item in waits if item.when is not None)
    return round((first - root.when).total_seconds(), 3)


def _rivals(root: Incident, later: list[Incident]) -> list[Rival]:
    kinds = Counter(item.failure.rule for item in later if item.failure.rule != root.failure.rule)
    rivals = []
    for rule, count in kinds.most_common(3):
        item = next(item for item in later if item.failure.rule == rule)
        if root.when is not None and item.when is not None:
            after = f"came {(item.when - root.when).total_seconds():.3f} s later"
        else:
            after = "can't be put in order: one of the two has no time"
        rivals.append(Rival(rule, f"{after}, {count} times, first in {item.line.where}"))
    return rivals


def _waiting(root: Incident, logs: _Logs, book: FailureBook) -> Iterator[Finding]:
    reporting = {item.rank for item in logs.incidents if item.rank is not None}
    silent = [rank for rank in logs.ranks if rank not in reporting]
    named = {
        int(rank) for item in logs.incidents for line in item.lines for rank in _PEERS.findall(line.text)
    }
    silent += sorted(named - reporting - set(logs.ranks) - logs.unread_ranks)
    if silent:
        yield make_finding(
            "silent_ranks", book.rules["silent_ranks"], [Evidence("ranks", _list(sorted(silent)))]
        )
    spread, latest = _spread(logs)
    if spread is None:
        return
    rule = "late_start" if spread > logs.timeout_s else "link_or_missing_peer"
    if rule == "link_or_missing_peer" and silent:
        return
    evidence = [Evidence("spread_s", round(spread, 1), "s"), Evidence("timeout_s", logs.timeout_s, "s")]
    if rule == "late_start":
        evidence.append(Evidence("latest", latest))
    yield make_finding(rule, book.rules[rule], evidence)


def _spread(logs: _Logs) -> tuple[float | None, str]:
    """The largest distance in s between the ranks' starts, or between their first errors; and who was last."""
    starts = [
        (file.started, f"rank {file.rank}")
        for file in logs.files
        if file.rank is not None and file.started is not None
    ]
    errors: dict[str, datetime] = {}
    for item in logs.incidents:
        if item.failure.rule in _WAITING and item.when is not None:
            errors.setdefault(item.who, item.when)
    spreads = []
    for moments in (starts, [(when, who) for who, when in errors.items()]):
        if len(moments) > 1:
            low, high = min(moments), max(moments)
            spreads.append(((high[0] - low[0]).total_seconds(), high[1]))
    return max(spreads) if spreads else (None, "")


def _stopped(logs: _Logs, book: FailureBook) -> Iterator[Finding]:
    failed = {item.rank for item in logs.incidents}
    ends = {file.rank: file.last for file in logs.files if file.rank is not None and file.last is not None}
    moments = sorted(end.timestamp() for end in ends.values())
    for rank, end in sorted(ends.items(), key=lambda pair: pair[0] or 0):
        if rank in failed or len(moments) < 2:
            continue
        gap = _median_without(moments, end.timestamp()) - end.timestamp()
        if gap > _STOPPED_EARLY.total_seconds():
            evidence = [
                Evidence("rank", rank),
                Evidence("gap_s", round(gap, 1), "s"),
                Evidence("last_line", end.isoformat(sep=" ")),
            ]
            yield make_finding("log_stops_early", book.rules["log_stops_early"], evidence)  # fmt: skip


def _median_without(ordered: Sequence[float], one: float) -> float:
    """The median of sorted numbers without one of them, in constant time: jobs have thousands of ranks."""
    at, rest = bisect_left(ordered, one), len(ordered) - 1
    low, high = (rest - 1) // 2, rest // 2
    return (ordered[low + (low >= at)] + ordered[high + (high >= at)]) / 2


def _ranks(files: list[LogFile]) -> set[int]:
    named = {line.rank for file in files for line in file.lines if line.rank is not None}
    return named | {file.rank for file in files if file.rank is not None}


def _missing(files: list[LogFile], ranks: list[int]) -> list[int]:
    lines = [line.text for file in files for line in file.lines]
    sizes = [int(size) for text in lines for size in _WORLD.findall(text) if int(size) <= MOST_RANKS]
    peers = [int(rank) for text in lines for rank in _PEERS.findall(text) if int(rank) < MOST_RANKS]
    world = max([*sizes, *(rank + 1 for rank in [*ranks, *peers])], default=0)
    # Without any known rank every one would be missing, which says nothing.
    return sorted(set(range(world)) - set(ranks)) if ranks else []


def _timeout_s(files: list[LogFile]) -> int:
    for file in files:
        for line in file.lines:
            if found := _TIMEOUT.search(line.text):
                return int(found.group(1) or found.group(2))
    return failure_book().connect_timeout_s


def _list(ranks: Sequence[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:_SHOWN])
    return f"{shown}, and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else shown
