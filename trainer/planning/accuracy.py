"""How far predictions were off on public measurements; every prediction carries the figure that concerns it.

Measured by the tests of this package on real logs (tests/trainer/planning); docs/memory.md and docs/strategy.md say how.
"""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Accuracy:
    """The relative error to expect.

    Attributes:
        relative_error: mean of |predicted - measured| / measured.
        rows: how many measurements.
        on: which ones.
        note: under which condition.
    """

    relative_error: float
    rows: int
    on: str
    note: str

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


MEMORY = Accuracy(
    relative_error=0.05,
    rows=69,
    on="176 to 206B GPT models on 80 to 384 A100 80 GB (BigScience, February 2022)",
    note="with one constant a gradient type fitted; without it such a device held 10 to 17 GiB more than the terms",
)
POOL = Accuracy(
    relative_error=0.01,
    rows=4,
    on="Qwen2.5-7B on 910 64 GB with MindSpore 2.7.1, real runs and dry runs, with and without recomputation",
    note="the framework's pool on the first stage",
)
TIME = Accuracy(
    relative_error=0.055,
    rows=16,
    on="181B on 384 A100 80 GB (BigScience, 25 February 2022)",
    note="leave-one-out, for one model on one cluster; another cluster needs its own calibration",
)
