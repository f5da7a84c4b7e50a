"""The sandbox process of a run: ready or a clear error, and always ended."""

import os
from pathlib import Path

import pytest

from evalkit.errors import IncompleteError, InputError
from evalkit.replay.server_process import sandbox_process

MODULE = "tests.support.fake_server"
BUNDLE = Path("bundle")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_is_ready_and_then_ended() -> None:
    with sandbox_process(BUNDLE, None, module=MODULE, options=["--mode", "good"]) as running:
        assert (running.address, running.model_digest) == ("127.0.0.1:9", "d")
        assert alive(running.pid)
    assert not alive(running.pid)


def test_it_is_ended_when_the_block_fails() -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        sandbox_process(BUNDLE, None, module=MODULE, options=["--mode", "good"]) as running,
    ):
        raise KeyboardInterrupt
    assert not alive(running.pid)


def test_one_that_ignores_the_signal_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalkit.replay.server_process._STOP_TIMEOUT_S", 0.2)
    with sandbox_process(BUNDLE, None, module=MODULE, options=["--mode", "stubborn"]) as running:
        assert alive(running.pid)
    assert not alive(running.pid)


def test_refused_input_is_the_users_to_mend() -> None:
    with (
        pytest.raises(InputError, match="sandbox: bundle: no such folder; make one"),
        sandbox_process(BUNDLE, None, module=MODULE, options=["--mode", "refuse"]),
    ):
        pass


def test_a_crash_before_ready_shows_its_last_words() -> None:
    with (
        pytest.raises(IncompleteError, match=r"exit code 1 before it was ready: .*ValueError: boom"),
        sandbox_process(BUNDLE, None, module=MODULE, options=["--mode", "crash"]),
    ):
        pass


def test_one_that_is_never_ready_is_given_up() -> None:
    with (
        pytest.raises(IncompleteError, match=r"wasn't ready within 0.3 s"),
        sandbox_process(BUNDLE, None, module=MODULE, options=["--mode", "silent"], ready_timeout_s=0.3),
    ):
        pass
