"""What differs between two baseline runs."""

from dataclasses import dataclass
from typing import Any

from trainer.baseline.record import BaselineRecord

# Where a run differs in several, the first of these explains the others.
_ORDER = (
    "environment",
    "config",
    "data_sha256",
    "steps",
    "loss_before",
    "loss_after",
    "weights_sha256",
    "operators",
    "graphs",
)


@dataclass(frozen=True)
class Difference:
    """One field that isn't equal; `what` is its path."""

    what: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.what}: {_shown(self.before)} before, {_shown(self.after)} now"


def compare(before: BaselineRecord, after: BaselineRecord) -> list[Difference]:
    """All differences, causes first; numbers must be equal to the bit.

    Equal environments, configurations and samples give equal bits on a CPU, so any other difference means that the
    code computes something else.
    """
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    return [difference for name in _ORDER for difference in _differences(name, old[name], new[name])]


def _differences(path: str, old: Any, new: Any) -> list[Difference]:
    if old == new:
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            difference
            for key in sorted({*old, *new})
            for difference in _differences(f"{path}.{key}", old.get(key), new.get(key))
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            difference
            for index, (left, right) in enumerate(zip(old, new, strict=True))
            for difference in _differences(f"{path}.{index}", left, right)
        ]
    return [Difference(path, old, new)]


def _shown(value: Any) -> str:
    text = str(value)
    return f"{text[:57]}..." if len(text) > 60 else text
