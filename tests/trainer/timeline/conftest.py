"""Real traces, analysed once for all tests."""

from pathlib import Path

import pytest

from trainer.timeline.run import Analysis, analyse


@pytest.fixture(scope="session")
def traces(shared_data: Path) -> Path:
    return shared_data / "traces"


@pytest.fixture(scope="session")
def alexnet(traces: Path) -> Analysis:
    return analyse(traces / "ms_alexnet_dp2")


@pytest.fixture(scope="session")
def marey(traces: Path) -> Analysis:
    return analyse(traces / "ms_marey_pp2_4dev")


@pytest.fixture(scope="session")
def cluster(traces: Path) -> Analysis:
    return analyse(traces / "ms_cluster_pp2_4rank")
