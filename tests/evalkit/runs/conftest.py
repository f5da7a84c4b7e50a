"""A finished run, made once and copied for each test that breaks it."""

import shutil
from pathlib import Path

import pytest

from evalkit.runs.folder import RunFolder
from tests.evalkit.fake_run import RULES, random_evidence, write_run


@pytest.fixture(scope="session")
def pristine_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with baseline, verdict and seal. Don't write into it."""
    path = tmp_path_factory.mktemp("runs") / "run"
    candidate = random_evidence(1, texts=6, dialogues=2, worse=0.2)
    return write_run(path, RULES, candidate, random_evidence(1, texts=6, dialogues=2))


@pytest.fixture
def run(pristine_run: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy to be broken."""
    shutil.copytree(pristine_run.path, tmp_path / "run")
    return RunFolder(tmp_path / "run")
