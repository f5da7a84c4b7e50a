"""`trainer pareto` from file to report."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalkit.errors import InputError
from evalkit.files import write_bytes_atomic, write_json_atomic
from trainer.pareto.front import Setting, find_front
from trainer.pareto.knee import Recommendation, recommend
from trainer.pareto.runs import read_table
from trainer.pareto.space import ParetoSpace, load_space
from trainer.pareto.study import run_search


@dataclass(frozen=True)
class ParetoReport:
    """All settings, and which to take; None: there is no front, `summary` says why."""

    space: ParetoSpace
    settings: tuple[Setting, ...]
    recommendation: Recommendation | None

    @property
    def front(self) -> list[Setting]:
        """The settings that nothing beats."""
        return [item for item in self.settings if item.status == "front"]

    @property
    def summary(self) -> list[str]:
        """In sentences."""
        counts = Counter(item.status for item in self.settings)
        told = ", ".join(f"{number} {status}" for status, number in counts.most_common())
        runs = sum(len(item.runs) for item in self.settings)
        lines = [f"{runs} runs of {len(self.settings)} configurations: {told}."]
        found = self.recommendation
        if found is None:
            return [*lines, "No configuration can be on the front; the reasons stand beside each."]
        if found.p_loss is None:
            text = f"Take {found.setting.label}: it has the best score, and nothing faster is as good."
            return [*lines, text, f"Test: {found.test}."]
        assert found.loss_high is not None and found.speed_gain_low is not None
        assert found.speed_gain_high is not None
        level = f"{100 * (1 - 2 * self.space.alpha):g} %"
        return [
            *lines,
            f"Take {found.setting.label}: no significant loss of {self.space.score.metric}, most speed.",
            f"Worth: {found.speed_gain:.3f} times the speed [{level}: {found.speed_gain_low:.3f}, {found.speed_gain_high:.3f}] "
            f"of {found.best.label}, which has the best score; {_loss(found)}.",
            f"Test: {found.test}.",
        ]

    def to_json(self) -> dict[str, Any]:
        """pareto.json."""
        found = self.recommendation
        return {
            "version": 1,
            "space": self.space.model_dump(mode="json"),
            "summary": self.summary,
            "recommendation": None if found is None else found.to_json(),
            "settings": [item.to_json() for item in self.settings],
        }


def run_pareto(path: Path, out: Path) -> ParetoReport:
    """Search or read the table, find the front, and write pareto.json and pareto.html into `out`.

    Raises:
        InputError: a broken file, or an `out` that holds something else.
        IncompleteError: the search was interrupted.
    """
    from trainer.pareto.page import render_pareto_page

    space = load_space(path)
    if space.table is not None:
        if out.exists():
            raise InputError(f"{out}: exists already; remove it or choose another folder")
        runs = read_table(space, path.parent)
    else:
        if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / "space.json").exists())):
            raise InputError(f"{out}: exists and holds no search; choose another folder")
        runs = run_search(space, path.parent, out)
    settings = find_front(runs, space)
    report = ParetoReport(space, tuple(settings), recommend(settings, space))
    page = render_pareto_page(report)
    out.mkdir(parents=True, exist_ok=True)
    write_json_atomic(out / "pareto.json", report.to_json())
    write_bytes_atomic(out / "pareto.html", page.encode())
    return report


def _loss(found: Recommendation) -> str:
    way = "worse" if found.loss > 0 else "better"
    return f"the score is {abs(found.loss):.4g} {way} (p {found.p_loss:.2f}), a loss above {found.loss_high:.4g} is ruled out"
