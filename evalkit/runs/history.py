"""Runs over time, as the registry holds them: what was decided, and a metric in series that may be compared."""

import difflib
from dataclasses import asdict, dataclass
from typing import Any

from evalkit.errors import InputError
from evalkit.runs.registry import Registry
from evalkit.runs.registry_rows import MetricEntry, RunEntry, VerdictEntry


@dataclass(frozen=True)
class HistoryRun:
    """A run and its latest verdict; None where nothing was judged."""

    run: RunEntry
    verdict: VerdictEntry | None

    @property
    def word(self) -> str:
        """The verdict in a word."""
        return "NOT JUDGED" if self.verdict is None else self.verdict.verdict


@dataclass(frozen=True)
class Series:
    """A metric over runs of one scenario, measured in one way: only these numbers are comparable.

    Attributes:
        points: the oldest run first.
    """

    scenario: str
    scenario_sha256: str
    name: str
    k: int | None
    slice: str | None
    signature: str
    points: tuple[tuple[HistoryRun, MetricEntry], ...]


@dataclass(frozen=True)
class History:
    """What was recorded, the oldest run first.

    Attributes:
        metric: the one that was asked for, or None.
        series: of that metric, in the order in which they began.
    """

    runs: tuple[HistoryRun, ...]
    metric: str | None = None
    series: tuple[Series, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        content: dict[str, Any] = {"runs": [_run_dict(item) for item in self.runs]}
        if self.metric is not None:
            content["metric"] = self.metric
            content["series"] = [_series_dict(item) for item in self.series]
        return content


def load_history(metric: str | None = None) -> History:
    """Read the registry.

    Args:
        metric: show this metric too, with each k and slice of it.

    Raises:
        InputError: no recorded run has the metric, or the registry can't be read.
    """
    with Registry() as registry:
        runs = tuple(HistoryRun(run, verdict) for run, verdict in registry.runs())
        if metric is None:
            return History(runs)
        entries = registry.metrics(metric)
        if not entries:
            near = difflib.get_close_matches(metric, registry.metric_names(), n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else "`evalkit history` lists the runs"
            raise InputError(f"--metric {metric}: no run recorded in {registry.path} has it; {hint}")
    by_id = {item.run.run_id: item for item in runs}
    grouped: dict[tuple[Any, ...], list[tuple[HistoryRun, MetricEntry]]] = {}
    for entry in entries:
        item = by_id[entry.run_id]
        key = (item.run.scenario_sha256, entry.k, entry.slice, entry.signature)
        grouped.setdefault(key, []).append((item, entry))
    series = [
        Series(points[-1][0].run.scenario, scenario_sha256, metric, k, slice, signature, tuple(points))
        for (scenario_sha256, k, slice, signature), points in grouped.items()
    ]
    return History(runs, metric, tuple(series))


def _run_dict(item: HistoryRun) -> dict[str, Any]:
    verdict = item.verdict
    return {
        **asdict(item.run),
        "verdict": None if verdict is None else verdict.verdict,
        "policy_sha256": None if verdict is None else verdict.policy_sha256,
    }


def _series_dict(series: Series) -> dict[str, Any]:
    points = []
    for item, entry in series.points:
        fields = ("value", "reason", "unit", "low", "high", "confidence", "n")
        values = {name: getattr(entry, name) for name in fields}
        run = item.run
        identity = {"run_id": run.run_id, "created": run.created, "model_digest": run.model_digest}
        points.append({**identity, "verdict": item.word, **values})
    return {
        "scenario": series.scenario,
        "scenario_sha256": series.scenario_sha256,
        "name": series.name,
        "k": series.k,
        "slice": series.slice,
        "signature": series.signature,
        "points": points,
    }
