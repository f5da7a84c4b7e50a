"""TLS, client certificates and bearer tokens, with real certificates; no secret leaves in plain text."""

from pathlib import Path

import pytest

from evalkit.errors import InputError
from evalkit.replay.access import Access
from evalkit.replay.client import SandboxClient, SandboxError
from tests.evalkit.replay.secured import Secured, secured
from tests.support.fake_sandbox import Answer, FakeSandbox, serve

__all__ = ["secured"]


def test_mutual_tls_and_a_token(secured: Secured) -> None:
    files = secured.files
    (files / "token").write_text("sesame\n")
    access = Access(files / "ca.pem", files / "cert.pem", files / "key.pem", files / "token")
    with SandboxClient(secured.address, access) as client:
        assert client.describe().engine == "fake"
    assert secured.authorizations == ["Bearer sesame"]


def test_a_token_never_leaves_this_machine_in_plain_text(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("sesame")
    access = Access(token_file=tmp_path / "token")
    with pytest.raises(InputError, match="plain text"):
        SandboxClient("sandbox.example:50051", access)
    for address in ("127.0.0.1:1", "localhost:1", "[::1]:1"):
        SandboxClient(address, access).close_channel()


@pytest.mark.parametrize("content", ["", "two words", "ein\u00e4", "a\nb"])
def test_a_broken_token_file_is_named_without_its_content(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)
    with pytest.raises(InputError, match="must hold one token") as caught:
        SandboxClient("127.0.0.1:1", Access(token_file=tmp_path / "token"))
    assert "words" not in str(caught.value)


def test_missing_files_are_named(tmp_path: Path) -> None:
    for access in (Access(token_file=tmp_path / "none"), Access(ca=tmp_path / "none")):
        with pytest.raises(InputError, match="No such file"):
            SandboxClient("127.0.0.1:1", access)


@pytest.mark.parametrize(
    ("ca", "own", "kind", "message"),
    [
        ("other.pem", True, InputError, "its certificate isn't of the given authority"),
        ("ca.pem", False, SandboxError, "if it asks for a client certificate"),
        (None, False, SandboxError, "if it wants TLS"),
    ],
)
def test_why_there_is_no_connection_is_said(
    secured: Secured, ca: str | None, own: bool, kind: type[Exception], message: str
) -> None:
    files = secured.files
    access = Access(
        files / ca if ca else None, files / "cert.pem" if own else None, files / "key.pem" if own else None
    )
    with SandboxClient(secured.address, access) as client, pytest.raises(kind, match=message) as caught:
        client.wait_until_ready(0.5)
    assert "\n" not in str(caught.value)


def test_tls_to_a_plain_server_is_the_callers_mistake(secured: Secured) -> None:
    plain = FakeSandbox(lambda session, text: Answer("hi"))
    access = Access(secured.files / "ca.pem")
    with (
        serve(plain) as address,
        SandboxClient(address, access) as client,
        pytest.raises(InputError, match="speaks no TLS"),
    ):
        client.wait_until_ready(0.5)


def test_files_that_gRPC_would_fail_on_at_each_handshake_are_refused(secured: Secured) -> None:  # noqa: N802
    files = secured.files
    (files / "bad.pem").write_bytes(b"\xffno PEM")
    (files / "half.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    ca, cert, key = files / "ca.pem", files / "cert.pem", files / "key.pem"
    for access, message in (
        (Access(files / "bad.pem"), "holds no certificate"),
        (Access(files / "half.pem"), "holds no certificate"),
        (Access(key), "holds no certificate"),
        (Access(ca, cert, cert), "can't be used together"),
        (Access(ca, files / "bad.pem", key), "can't be used together"),
        (Access(ca, ca, key), "can't be used together"),
        (Access(ca, cert, files / "none"), "No such file"),
    ):
        with pytest.raises(InputError, match=message):
            SandboxClient("localhost:1", access)


def test_a_byte_order_mark_is_no_part_of_a_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\ufeffsesame\n", encoding="utf-8")
    assert Access(token_file=tmp_path / "token").token() == "sesame"
