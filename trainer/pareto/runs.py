"""Runs as the front needs them, and the table they may come from."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from evalkit.errors import InputError
from trainer.csv_rows import csv_rows, require_columns
from trainer.pareto.space import ParetoSpace

State = Literal["ok", "nan", "infeasible", "unmeasured"]


@dataclass(frozen=True)
class Run:
    """One run of a configuration.

    Attributes:
        configuration: field (or column) to value.
        name: of the run: its seed, or its place in the table.
        state: ok; nan (it diverged); infeasible (it can't be made, or passed a limit); unmeasured (a value is missing).
        why: where the state isn't ok.
    """

    configuration: dict[str, Any]
    name: str
    score: float | None
    speed: float | None
    state: State = "ok"
    why: str = ""
    memory_mib: float | None = None

    def to_json(self) -> dict[str, Any]:
        """For pareto.json."""
        return asdict(self)


def read_table(space: ParetoSpace, folder: Path) -> list[Run]:
    """The runs of `space.table`.

    Raises:
        InputError: no such file or column, a value that is no number, a speed that isn't positive.
    """
    assert space.table is not None
    table, path = space.table, folder / space.table.file
    wanted = [*table.configuration, *table.where, space.score.metric, space.speed.metric]
    rows = list(csv_rows(path))
    require_columns(path, wanted, rows[0][1] if rows else wanted)
    runs = []
    for line, row in rows:
        where = f"{path}:{line}"
        if any(row[name] != value for name, value in table.where.items()):
            continue
        configuration = {name: row[name] for name in table.configuration}
        score = _number(where, space.score.metric, row[space.score.metric], table.nan)
        speed = _number(where, space.speed.metric, row[space.speed.metric], table.nan)
        state: State = "ok"
        why = ""
        if score is None or speed is None:
            empty = space.score.metric if score is None else space.speed.metric
            state, why = "unmeasured", f"{empty} is empty"
        elif not math.isfinite(score):
            state, why, score = "nan", f"{space.score.metric} isn't a number", None
        elif not math.isfinite(speed) or speed <= 0:
            raise InputError(f"{where}: {space.speed.metric} {speed:g}: a positive number is needed")
        runs.append(Run(configuration, f"line {line}", score, speed, state, why))
    if not runs:
        raise InputError(f"{path}: no run is left; look at table.where")
    return runs


def _number(where: str, name: str, text: str, nan: tuple[str, ...]) -> float | None:
    if not text.strip():
        return None
    if text.strip() in nan:
        return math.nan
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{where}: {name} {text!r:.40}: a number is needed") from None
