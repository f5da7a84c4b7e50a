"""A short run whose every figure is stored, so that a later one on the same code and machine can be compared with it."""

from trainer.baseline.compare import Difference, compare
from trainer.baseline.run import BaselineResult, run_baseline

__all__ = ["BaselineResult", "Difference", "compare", "run_baseline"]
