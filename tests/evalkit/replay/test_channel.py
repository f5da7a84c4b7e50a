"""TLS, client certificates and bearer tokens, with real certificates; no secret leaves in plain text."""

from pathlib import Path

import pytest

from evalkit.errors import InputError
from evalkit.replay.access import Access
from evalkit.replay.client import SandboxClient
from tests.evalkit.replay.secured import Secured, secured

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
