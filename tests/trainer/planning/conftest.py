"""Public measurements, and models by their numbers."""

from pathlib import Path

import pytest

from tests.trainer.planning.public_runs import read_sweep
from trainer.planning.measurements import Measurement


@pytest.fixture(scope="session")
def traces(shared_data: Path) -> Path:
    return shared_data / "traces"


@pytest.fixture(scope="session")
def sweep(traces: Path) -> list[Measurement]:
    return read_sweep(traces)
