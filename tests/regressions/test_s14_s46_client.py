"""S14, S23-S25, S46 as the client meets them: what is repeated, how long it waits, how a call ends, what TLS refuses."""

import threading
import time
from pathlib import Path

import grpc
import pytest

from evalkit.errors import InputError
from evalkit.replay.access import Access
from evalkit.replay.client import Sampling, SandboxClient, SandboxError
from tests.evalkit.replay.secured import Secured, secured
from tests.support.fake_sandbox import Answer, FakeSandbox, FakeSession, RefusalError, serve

__all__ = ["secured"]

SAMPLING = Sampling(max_new_tokens=8)


def test_s14_without_a_turn_id_nothing_is_sent_twice() -> None:
    def lost(session: FakeSession, text: str) -> Answer:
        raise RefusalError(grpc.StatusCode.UNAVAILABLE, "connection lost, perhaps after the work was done")

    sandbox = FakeSandbox(lost)
    with serve(sandbox) as address, SandboxClient(address) as client:
        client.open("s", "en")
        with pytest.raises(SandboxError, match="UNAVAILABLE"):
            client.turn("s", "", "hello", SAMPLING, timeout_s=5)
    assert len(sandbox.requests) == 1


def test_s23_a_full_server_is_asked_again_when_it_says_and_not_before() -> None:
    times: list[float] = []

    def full_once(session: FakeSession, text: str) -> Answer:
        times.append(time.monotonic())
        if len(times) == 1:
            raise RefusalError(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", retry_after_s=0.5)
        return Answer("hi")

    with serve(FakeSandbox(full_once)) as address, SandboxClient(address) as client:
        client.open("s", "en")
        assert client.turn("s", "t", "hello", SAMPLING, timeout_s=5).text == "hi"
    assert times[1] - times[0] >= 0.5


def test_s24_a_cancelled_stream_ends_at_once_and_the_client_goes_on() -> None:
    sandbox = FakeSandbox(lambda session, text: Answer("word " * 200))
    sandbox.delay_s = 0.05
    with serve(sandbox) as address, SandboxClient(address) as client:
        client.open("s", "en")
        stream = client.stream_turn("s", "t0", "hello", SAMPLING, timeout_s=60)
        threading.Timer(0.3, stream.cancel).start()
        started = time.monotonic()
        with pytest.raises(SandboxError) as caught:
            list(stream)
        assert caught.value.code == "CANCELLED" and time.monotonic() - started < 5
        sandbox.delay_s = 0.0
        client.open("s2", "en")
        assert client.turn("s2", "t0", "hello", SAMPLING, timeout_s=5).text
        stream.cancel()


def test_s25_a_message_too_large_is_one_clear_error_and_is_not_repeated() -> None:
    sandbox = FakeSandbox(lambda session, text: Answer("hi"))
    with serve(sandbox) as address, SandboxClient(address) as client:
        client.open("s", "en")
        started = time.monotonic()
        with pytest.raises(SandboxError, match=r"RESOURCE_EXHAUSTED.*larger than max") as caught:
            client.turn("s", "t", "x" * (5 << 20), SAMPLING, timeout_s=20)
        assert time.monotonic() - started < 5
    assert caught.value.details.retry_after_s is None and not sandbox.requests


def test_s46_a_wrong_authority_no_certificate_and_plaintext_are_refused(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S46: nothing falls back to an open connection."""
    monkeypatch.setattr("evalkit.replay.retries._FIRST_WAIT_S", 0.001)
    files = secured.files
    for access in (
        Access(files / "other.pem", files / "cert.pem", files / "key.pem"),
        Access(files / "ca.pem"),
        Access(),
    ):
        with (
            SandboxClient(secured.address, access) as client,
            pytest.raises(SandboxError, match="UNAVAILABLE"),
        ):
            client.describe()


def test_s46_half_of_a_key_pair_is_an_error(tmp_path: Path) -> None:
    """S46: only key or only certificate given must not switch to something else."""
    for half in ({"cert": tmp_path}, {"key": tmp_path}):
        with pytest.raises(InputError, match="go together"):
            Access(ca=tmp_path, **half)
    with pytest.raises(InputError, match="needs TLS"):
        Access(cert=tmp_path, key=tmp_path)
