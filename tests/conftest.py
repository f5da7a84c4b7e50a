"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the real data, beside the checkout (or where EVALKIT_SHARED_DATA says)."""
    folder = Path(os.environ.get("EVALKIT_SHARED_DATA", PROJECT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"the real data isn't here ({folder}); set EVALKIT_SHARED_DATA to its folder")
    return folder
