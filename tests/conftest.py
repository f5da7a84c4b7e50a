"""Fixtures shared by all tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox.fixtures import flow_folder, flow_server, server, tiny_bundle
from tests.support.real_models import smollm2_bundle, smollm2_file, stories_bundle
from tests.trainer.fixtures import tiny_export, tiny_run, training_folder

__all__ = [
    "flow_folder",
    "flow_server",
    "server",
    "shared_data",
    "smollm2_bundle",
    "smollm2_file",
    "stories_bundle",
    "tiny_bundle",
    "tiny_export",
    "tiny_run",
    "training_folder",
]

PROJECT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def evalkit_home_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What outlives a run is kept out of the working directory."""
    folder = tmp_path_factory.mktemp("evalkit_home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVALKIT_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the real data, beside the checkout (or where EVALKIT_SHARED_DATA says)."""
    folder = Path(os.environ.get("EVALKIT_SHARED_DATA", PROJECT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"the real data isn't here ({folder}); set EVALKIT_SHARED_DATA to its folder")
    return folder
