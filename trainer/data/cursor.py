"""A place in the training data: where a resumed run goes on."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cursor:
    """The next batch: number `batch` (from 0) of epoch `epoch` (from 0)."""

    epoch: int = 0
    batch: int = 0
