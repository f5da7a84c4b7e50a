"""`evalkit ingest outcomes`: online figures by released model → the calibration history of a business figure.

A release's online figure is the mean of its rows, weighted by their cases; its offline score is what its run measured.
"""

import csv
import glob
import io
import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evalkit.errors import InputError
from evalkit.feedback.mapping import Offline, OutcomesMap, Row, read_rows, text_of, time_from
from evalkit.files import write_bytes_atomic
from evalkit.metrics.history import finite_number
from evalkit.runs.folder import RunFolder
from evalkit.runs.results_io import read_results
from evalkit.yaml_source import YamlSource

_SCHEMA = "evalkit.outcomes/1"
_UNDATED = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class HistoryRow:
    """One release; `date` is the latest of its rows, as the log writes it, "" where no column holds dates."""

    release: str
    date: str
    offline: float
    online: float


@dataclass(frozen=True)
class Outcomes:
    """What was written.

    Attributes:
        rows: releases with both figures, in the order of their dates.
        rows_read: rows of the log.
        left_out: releases without an offline score, and why.
        signature: of the offline scores' metric; None where a column holds them.
    """

    rows: tuple[HistoryRow, ...]
    rows_read: int
    left_out: dict[str, str]
    signature: str | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "schema": _SCHEMA,
            "rows_read": self.rows_read,
            "releases": [asdict(row) for row in self.rows],
            "left_out": self.left_out,
            "signature": self.signature,
        }


@dataclass
class _Release:
    total: list[float] = field(default_factory=list)
    cases: list[float] = field(default_factory=list)
    dates: list[tuple[datetime, str]] = field(default_factory=list)
    offline: set[float] = field(default_factory=set)


@dataclass(frozen=True)
class _Scores:
    by_digest: dict[str, float]
    problems: dict[str, str]
    signature: str | None


def ingest_outcomes(path: Path, map_path: Path, out: Path) -> Outcomes:
    """Write the calibration history `out`: CSV with release, date, offline, online.

    Args:
        path: online figures, JSON lines or CSV, several rows a release allowed.
        map_path: the mapping file.
        out: file to write.

    Raises:
        InputError: file and line of the first problem; or no release has both figures.
    """
    source = YamlSource(map_path)
    spec = source.parse(OutcomesMap)
    releases: dict[str, _Release] = {}
    read = 0
    for row in read_rows(path):
        read += 1
        name = text_of(row, spec.fields.release).strip()
        if not name:
            raise InputError(f"{row[0]}: {spec.fields.release}: is empty; name the release")
        _add(row, spec, releases.setdefault(name, _Release()))
    scores = None if spec.offline is None else _scores(spec.offline, source)
    found: list[tuple[datetime, HistoryRow]] = []
    left_out = {}
    for name, release in releases.items():
        offline, problem = _offline(name, release, spec, scores)
        if offline is None:
            left_out[name] = problem
            continue
        online = _mean(release, f"{path}: release {name!r}")
        when, date = max(release.dates, default=(_UNDATED, ""))
        found.append((when, HistoryRow(name, date, offline, online)))
    if not found:
        first = next(iter(left_out.items()), ("", "the file holds no row"))
        raise InputError(f"{path}: no release has both figures; {first[0]}: {first[1]}")
    rows = [row for _, row in sorted(found, key=lambda one: (one[0], one[1].release))]
    write_bytes_atomic(out, _csv(rows).encode())
    return Outcomes(tuple(rows), read, left_out, None if scores is None else scores.signature)


def _add(row: Row, spec: OutcomesMap, release: _Release) -> None:
    fields = spec.fields
    cases = 1.0 if fields.cases is None else _number(row, fields.cases)
    if cases <= 0:
        raise InputError(f"{row[0]}: {fields.cases}: a number above 0 is needed (got {cases:g})")
    release.total.append(cases * _number(row, fields.online))
    release.cases.append(cases)
    if fields.date is not None:
        date = text_of(row, fields.date).strip()
        release.dates.append((time_from(date, f"{row[0]}: {fields.date}"), date))
    if fields.offline is not None:
        release.offline.add(_number(row, fields.offline))


def _mean(release: _Release, where: str) -> float:
    try:
        mean = math.fsum(release.total) / math.fsum(release.cases)
    except (OverflowError, ValueError):  # of infinities; of both signs
        mean = math.inf
    if not math.isfinite(mean):
        raise InputError(
            f"{where}: figures times cases are too large to be added; give cases in another unit"
        )
    return mean


def _offline(
    name: str, release: _Release, spec: OutcomesMap, scores: _Scores | None
) -> tuple[float | None, str]:
    if scores is None:
        if len(release.offline) > 1:
            return None, f"its rows hold {len(release.offline)} different offline scores"
        return next(iter(release.offline)), ""
    digest = spec.releases.get(name, name)
    if digest in scores.by_digest:
        return scores.by_digest[digest], ""
    return None, scores.problems.get(digest, f"no run measured the model {digest:.20}")


def _scores(spec: Offline, source: YamlSource) -> _Scores:
    """The metric of every run, by model digest."""
    found: dict[str, float] = {}
    where: dict[str, Path] = {}
    problems: dict[str, str] = {}
    signatures: Counter[str] = Counter()
    for folder in _run_folders(spec, source):
        results = read_results(folder.results)
        wanted = (spec.metric, spec.k, spec.slice)
        metric = next((one for one in results.metrics if (one.name, one.k, one.slice) == wanted), None)
        digest = results.model_digest
        if metric is None or metric.value is None:
            why = "isn't measured" if metric is None else f"has no value: {metric.reason}"
            problems[digest] = f"{spec.metric} {why} in {folder.path}"
            continue
        if found.get(digest, metric.value) != metric.value:
            raise InputError(
                f"{folder.path} and {where[digest]} measured {spec.metric} of one model differently; name one of them"
            )
        found[digest], where[digest] = metric.value, folder.path
        signatures[metric.signature] += 1
    if len(signatures) > 1:
        raise InputError(
            f"{source.path}: offline.runs: {spec.metric} was measured in different ways, not comparable: "
            f"{' and '.join(sorted(signatures))}; name runs of one scenario"
        )
    return _Scores(found, problems, next(iter(signatures), None))


def _run_folders(spec: Offline, source: YamlSource) -> list[RunFolder]:
    folders: set[Path] = set()
    base = source.path.resolve().parent
    for index, pattern in enumerate(spec.runs):
        # Path.glob refuses absolute patterns.
        names = glob.glob(pattern, root_dir=base)  # noqa: PTH207
        matching = {(base / name).resolve() for name in names if (base / name / "results.json").is_file()}
        if not matching:
            raise source.error(
                ("offline", "runs", index), f"{pattern!r} matches no finished run under {base}"
            )
        folders |= matching
    return [RunFolder(folder) for folder in sorted(folders)]


def _number(row: Row, name: str) -> float:
    return finite_number(text_of(row, name, "a number"), name, row[0])


def _csv(rows: list[HistoryRow]) -> str:
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["release", "date", "offline", "online"])
    writer.writerows([row.release, row.date, repr(row.offline), repr(row.online)] for row in rows)
    return stream.getvalue()
