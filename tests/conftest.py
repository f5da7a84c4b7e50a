"""Fixtures shared by all tests."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.sandbox.fixtures import flow_folder, flow_server, server, tiny_bundle
from tests.support.browser import chromium
from tests.support.endpoints import endpoint, stories_server
from tests.support.interrupted import begun, interrupted
from tests.support.modes import pynative
from tests.support.peers import peers_python
from tests.support.real_models import smollm2_bundle, smollm2_file, stories_bundle
from tests.trainer.fixtures import tiny_export, tiny_run, training_folder

__all__ = [
    "begun",
    "chromium",
    "endpoint",
    "flow_folder",
    "flow_server",
    "interrupted",
    "peers_python",
    "pynative",
    "server",
    "shared_data",
    "smollm2_bundle",
    "smollm2_file",
    "stories_bundle",
    "stories_server",
    "tiny_bundle",
    "tiny_export",
    "tiny_run",
    "training_folder",
]

# A run that was started in the background of a script ignores Ctrl-C, and so would every process that the
# tests start and then interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, and no limit on what the clock says of one: a machine that is busy for a moment isn't a
# counterexample. `--hypothesis-profile default` looks for new ones.
hypothesis.settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("repeatable")

PROJECT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What module fixtures run leaves nothing in the checkout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVALKIT_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test has a result cache of its own, so that none is answered by what another one computed."""
    home = tmp_path_factory.mktemp("home", numbered=True) / "evalkit"
    monkeypatch.setenv("EVALKIT_HOME", str(home))
    return home


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the real data, beside the checkout (or where EVALKIT_SHARED_DATA says)."""
    folder = Path(os.environ.get("EVALKIT_SHARED_DATA", PROJECT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"the real data isn't here ({folder}); set EVALKIT_SHARED_DATA to its folder")
    return folder
