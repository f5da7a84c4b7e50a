"""The paired changes from baseline to candidate as a report shows them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from evalkit.gate.comparison import ComparedMetric, Difference
from evalkit.gate.verdict import Verdict
from evalkit.metrics.spec import ROBUSTNESS_PREFIX
from evalkit.report import numbers
from evalkit.report.charts import Dot, Mark, Scale, Strip, axis
from evalkit.report.source import ReportSource

# Units whose change reads best as a difference; all others as per cent of the baseline.
_ABSOLUTE_UNITS = frozenset({"share", "nats", "turns", "score 1-5", "relative change"})
_WORDS = {"better": "better", "worse": "worse", "same": "no clear difference", "unknown": "no interval"}

Tone = Literal["better", "worse", "same", "unknown"]


@dataclass(frozen=True)
class ChangeView:
    """The paired change of one metric: a number, its interval, and what it means."""

    value: str
    interval: str
    tone: Tone
    word: str


@dataclass(frozen=True)
class ChangeRow:
    """One row of the comparison."""

    name: str
    candidate: str
    baseline: str
    change: ChangeView
    n: str
    coverage: str
    strip: Strip


@dataclass(frozen=True)
class ChangeBlock:
    """Changes of one unit on one scale."""

    unit: str
    rows: tuple[ChangeRow, ...]
    axis: Markup


def key_name(name: str, k: int | None, slice: str | None) -> str:
    """A metric's key as text, e.g. `dialogue/pass_hat_k k=3 [multi_turn]`."""
    return " ".join([name, *([f"k={k}"] if k is not None else []), *([f"[{slice}]"] if slice else [])])


def change_view(compared: ComparedMetric) -> ChangeView:
    """The change that suits the unit."""
    relative, difference = _suited(compared)
    if difference.value is None:
        return ChangeView(numbers.MISSING, difference.reason or "", "unknown", "not comparable")
    tone = _tone(difference, compared.direction)
    return ChangeView(
        value=numbers.change(difference.value, relative=relative, unit=compared.unit),
        interval=numbers.change_interval(difference.interval, relative=relative, unit=compared.unit),
        tone=tone,
        word=_WORDS[tone],
    )


def change_blocks(source: ReportSource) -> list[ChangeBlock]:
    """Every compared metric of the clean texts, relative changes first, then differences by unit."""
    if source.comparison is None:
        return []
    members: dict[str, list[ComparedMetric]] = {"relative change": []}
    for compared in source.comparison.metrics:
        # A change of a change reads better beside the others of its perturbation.
        if compared.name.startswith(ROBUSTNESS_PREFIX):
            continue
        relative, difference = _suited(compared)
        if difference.value is not None:
            members.setdefault("relative change" if relative else compared.unit, []).append(compared)
    return [_block(unit, found, source.verdict) for unit, found in members.items() if found]


def _block(unit: str, members: Sequence[ComparedMetric], verdict: Verdict | None) -> ChangeBlock:
    relative = unit == "relative change"
    values: list[float | None] = [0.0]
    for compared in members:
        _, difference = _suited(compared)
        values += [
            difference.value,
            *_ends(difference),
            *[mark.value for mark in _thresholds(compared, verdict)],
        ]
    scale = Scale.over(values, linear=True)
    labels = [(tick, numbers.change(tick, relative=relative, unit=unit)) for tick in scale.ticks()]
    shown = {"relative change": "relative change", "share": "percentage points"}.get(
        unit, f"difference in {unit}"
    )
    return ChangeBlock(shown, tuple(_row(item, scale, verdict) for item in members), axis(scale, labels))


def _row(compared: ComparedMetric, scale: Scale, verdict: Verdict | None) -> ChangeRow:
    _, difference = _suited(compared)
    view = change_view(compared)
    name = key_name(compared.name, compared.k, compared.slice)
    dots = (
        []
        if difference.value is None
        else [Dot(difference.value, *_ends(difference), tone=f"tone-{view.tone}")]
    )
    marks = [Mark(0.0, "zero", "no change"), *_thresholds(compared, verdict)]
    return ChangeRow(
        name=name,
        candidate=numbers.number(compared.candidate, compared.unit),
        baseline=numbers.number(compared.baseline, compared.unit),
        change=view,
        n=numbers.count(compared.n),
        coverage=numbers.number(compared.coverage, "share"),
        strip=Strip(scale, dots, marks, f"{name}: {view.value}, {view.interval}, {view.word}"),
    )


def _thresholds(compared: ComparedMetric, verdict: Verdict | None) -> list[Mark]:
    relative, _ = _suited(compared)
    key = (compared.name, compared.k, compared.slice)
    return [
        Mark(
            rule.threshold,
            "threshold",
            f"threshold {numbers.change(rule.threshold, relative=relative, unit=rule.unit)}",
        )
        for rule in (verdict.rules if verdict else ())
        if rule.kind == "change"
        and (rule.metric, rule.k, rule.slice) == key
        and ("relative" in rule.condition) == relative
    ]


def _suited(compared: ComparedMetric) -> tuple[bool, Difference]:
    """Whether the relative change is the one to show, and the difference that is."""
    relative = compared.unit not in _ABSOLUTE_UNITS and compared.relative.value is not None
    return relative, compared.relative if relative else compared.absolute


def _ends(difference: Difference) -> tuple[float | None, float | None]:
    return (
        (None, None) if difference.interval is None else (difference.interval.low, difference.interval.high)
    )


def _tone(difference: Difference, direction: str) -> Tone:
    low, high = _ends(difference)
    if low is None or high is None:
        return "unknown"
    if low <= 0 <= high:
        return "same"
    return "better" if (high < 0) == (direction == "lower") else "worse"
