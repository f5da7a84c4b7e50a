"""The tokens file: its lines, its errors without secrets, its reload."""

import hashlib
import os
from pathlib import Path

import pytest

from evalkit.errors import InputError
from sandbox.errors import UnauthenticatedError
from sandbox.tokens import TokenFile, read_tokens

SECRET = "swordfish-7319"


def header(value: str) -> list[tuple[str, str | bytes]]:
    return [("user-agent", "test"), ("authorization", value)]


def test_plain_and_hashed_lines_name_their_tenant(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    digest = hashlib.sha256(b"second").hexdigest()
    file.write_text(
        f"# who may call\n\nbank-a:{SECRET}\nbank-a:spare:with:colons\nbank-b:sha256:{digest.upper()}\n"
    )
    tokens = TokenFile(file)
    assert tokens.tenant_of(header(f"Bearer {SECRET}")) == "bank-a"
    assert tokens.tenant_of(header("bearer spare:with:colons")) == "bank-a"
    assert tokens.tenant_of(header("Bearer second")) == "bank-b"


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ([], "TOKEN_MISSING"),
        (header("Basic abc"), "TOKEN_MISSING"),
        (header(f"Bearer {SECRET}") * 2, "TOKEN_MISSING"),
        ([("authorization", b"Bearer x")], "TOKEN_MISSING"),
        (header("Bearer wrong"), "TOKEN_INVALID"),
        (header("Bearer "), "TOKEN_INVALID"),
        (header(f"Bearer {SECRET}x"), "TOKEN_INVALID"),
        (header(f"Bearer {hashlib.sha256(SECRET.encode()).hexdigest()}"), "TOKEN_INVALID"),
    ],
)
def test_anything_else_is_nobody(
    tmp_path: Path, metadata: list[tuple[str, str | bytes]], reason: str
) -> None:
    (tmp_path / "tokens").write_text(f"bank-a:{SECRET}")
    with pytest.raises(UnauthenticatedError) as refused:
        TokenFile(tmp_path / "tokens").tenant_of(metadata)
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no token"),
        ("# nothing\n", "holds no token"),
        (f"{SECRET}\n", ":1: isn't TENANT:TOKEN"),
        (f"\n:{SECRET}\n", ":2: isn't TENANT:TOKEN"),
        ("bank-a:\n", ":1: isn't TENANT:TOKEN"),
        (f"bank-a:sha256:{SECRET}\n", "64 hexadecimal digits"),
        (f"bank-a:{SECRET} x\n", "without blanks"),
        (f"bank-a:{SECRET}ß\n", "printable ASCII"),
        (f"a:{SECRET}\nb:{SECRET}\n", ":2: another tenant has the same token"),
        (f"{'x' * 129}:{SECRET}\n", "longer than 128 bytes"),
    ],
)
def test_broken_files_are_refused_with_the_line_but_never_the_secret(
    tmp_path: Path, content: str, message: str
) -> None:
    file = tmp_path / "tokens"
    file.write_text(content)
    with pytest.raises(InputError) as refused:
        read_tokens(file)
    assert message in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        TokenFile(tmp_path / "none")


def test_a_reload_takes_the_new_tokens_and_a_broken_file_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"bank-a:{SECRET}")
    tokens = TokenFile(file)
    file.write_text("bank-a:new")
    tokens.reload()
    assert tokens.tenant_of(header("Bearer new")) == "bank-a"
    with pytest.raises(UnauthenticatedError):
        tokens.tenant_of(header(f"Bearer {SECRET}"))
    file.write_text(SECRET)
    tokens.reload()
    file.unlink()
    tokens.reload()
    assert tokens.tenant_of(header("Bearer new")) == "bank-a"
    assert "tokens kept as they were" in caplog.text
    assert SECRET not in caplog.text


def test_a_file_that_became_a_pipe_does_not_hold_up_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"bank-a:{SECRET}")
    tokens = TokenFile(file)
    file.unlink()
    os.mkfifo(file)
    tokens.reload()
    assert tokens.tenant_of(header(f"Bearer {SECRET}")) == "bank-a"
    assert "tokens kept as they were" in caplog.text and "regular file" in caplog.text
