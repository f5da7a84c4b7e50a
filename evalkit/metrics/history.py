"""From an offline score to an online figure, by what past releases showed: a fit, its prediction interval, no more.

Linear: least squares with the exact prediction interval for normal errors (Draper & Smith, Applied Regression Analysis,
section 3.1). Isotonic: scikit-learn's fit; its interval takes the spread of the leave-one-out errors (PRESS), with
Student's t: an approximation. Outside the offline scores that were seen nothing is said.
"""

import csv
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Literal

import numpy as np

from evalkit.canonical import sha256_file
from evalkit.errors import InputError
from evalkit.files import read_text
from evalkit.metrics.context import History
from evalkit.metrics.estimators import FloatArray

Fit = Literal["linear", "isotonic"]

MIN_ROWS = {"linear": 5, "isotonic": 10}
_REQUIRED = ("offline", "online")
_OPTIONAL = ("release", "date")


def read_history(path: Path, fit: Fit) -> History:
    """Read a calibration history: CSV with the columns offline, online, and optionally release and date.

    Raises:
        InputError: file and line of the first problem.
    """
    text = read_text(path)
    if "\0" in text:
        raise InputError(f"{path}: a binary file; CSV text with the columns offline,online is needed")
    reader = csv.reader(StringIO(text.removeprefix("\ufeff")), strict=True)
    rows: list[tuple[float, float]] = []
    header: list[str] | None = None
    try:
        for fields in reader:
            where = f"{path}:{reader.line_num}"
            if not fields:
                continue
            if header is None:
                header = _header(fields, where)
                continue
            if len(fields) != len(header):
                raise InputError(f"{where}: {len(fields)} fields, the header has {len(header)}")
            offline, online = (finite_number(fields[header.index(name)], name, where) for name in _REQUIRED)
            rows.append((offline, online))
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: broken CSV: {error}") from None
    if header is None:
        raise InputError(f"{path}:1: the file is empty; a header offline,online is needed")
    if len(rows) < MIN_ROWS[fit]:
        raise InputError(
            f"{path}: {len(rows)} releases; the {fit} fit needs at least {MIN_ROWS[fit]}, add earlier ones"
        )
    if len({offline for offline, _ in rows}) < 3:
        raise InputError(f"{path}: offline: fewer than 3 different scores; nothing can be fitted to them")
    return History(tuple(rows), path.name, sha256_file(path))


def rank_correlation(history: History) -> float:
    """Spearman's rank correlation of offline and online; 0 where the online figures don't vary."""
    from scipy.stats import spearmanr

    offline, online = np.array(history.rows).T
    if len(set(online)) == 1:
        return 0.0
    return float(spearmanr(offline, online).statistic)


@dataclass(frozen=True)
class Calibration:
    """A fitted history.

    Attributes:
        history: what it was fitted to.
        fit: how.
        rising: whether the online figure rises with the offline score.
    """

    history: History
    fit: Fit
    rising: bool

    @property
    def range(self) -> tuple[float, float]:
        """Smallest and largest offline score that was seen."""
        offline = [row[0] for row in self.history.rows]
        return min(offline), max(offline)

    def covers(self, offline: float) -> bool:
        """Whether the history speaks of this score."""
        low, high = self.range
        return low <= offline <= high

    def predict(self, offline: float) -> float:
        """The online figure that is expected; `covers` must hold."""
        self._refuse_extrapolation(offline)
        return self._line(offline)[0] if self.fit == "linear" else float(self._isotonic(offline))

    def half_width(self, offline: float, confidence: float, sides: Literal[1, 2]) -> float:
        """Half the width of the prediction interval of one more release's online figure; `covers` must hold.

        Args:
            offline: its score.
            confidence: of the interval (sides 2) or of each end taken alone (sides 1).
            sides: 1 or 2.
        """
        from scipy.stats import t

        self._refuse_extrapolation(offline)
        quantile = float(t.ppf(1 - (1 - confidence) / sides, len(self.history.rows) - 2))
        return quantile * (self._line(offline)[1] if self.fit == "linear" else self._isotonic_error)

    def _refuse_extrapolation(self, offline: float) -> None:
        if not self.covers(offline):
            raise ValueError(f"{offline} is outside the calibration history")

    def _line(self, offline: float) -> tuple[float, float]:
        """Value and standard error of a prediction by least squares."""
        x, y = np.array(self.history.rows).T
        centred = x - x.mean()
        spread = float(centred @ centred)
        slope = float(centred @ y) / spread
        residuals = y - y.mean() - slope * centred
        variance = float(residuals @ residuals) / (len(x) - 2)
        distance = offline - float(x.mean())
        error = math.sqrt(variance * (1 + 1 / len(x) + distance**2 / spread))
        return float(y.mean()) + slope * distance, error

    @cached_property
    def _isotonic(self) -> Callable[[float], float]:
        x, y = np.array(self.history.rows).T
        return self._fit_isotonic(x, y)

    @cached_property
    def _isotonic_error(self) -> float:
        x, y = np.array(self.history.rows).T
        keep = ~np.eye(len(x), dtype=np.bool_)
        errors = [y[i] - self._fit_isotonic(x[keep[i]], y[keep[i]])(x[i]) for i in range(len(x))]
        return math.sqrt(math.fsum(error**2 for error in errors) / (len(x) - 2))

    def _fit_isotonic(self, x: FloatArray, y: FloatArray) -> Callable[[float], float]:
        from sklearn.isotonic import IsotonicRegression

        model = IsotonicRegression(increasing=self.rising, out_of_bounds="clip").fit(x, y)
        return lambda offline: float(model.predict([offline])[0])


def _header(fields: list[str], where: str) -> list[str]:
    names = [field.strip() for field in fields]
    for name in _REQUIRED:
        if name not in names:
            raise InputError(f"{where}: no column {name!r}; the header is offline,online")
    for name in names:
        if name not in (*_REQUIRED, *_OPTIONAL) or names.count(name) > 1:
            allowed = ", ".join((*_REQUIRED, *_OPTIONAL))
            raise InputError(f"{where}: column {name!r} is unknown or repeated; columns are {allowed}")
    return names


def finite_number(text: str, name: str, where: str) -> float:
    """The number in a field called `name`, `where` being its file and line.

    Raises:
        InputError: no number, NaN or infinite.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{where}: {name}: a finite number is needed (got {text!r:.40})")
    return value
