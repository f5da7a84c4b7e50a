"""A signed run: who vouched for it is checked against a public key, and whatever is wrong with it is named."""

import base64
import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from evalkit.canonical import canonical_json
from evalkit.errors import InputError
from evalkit.report import write_reports
from evalkit.runs.folder import RunFolder
from evalkit.runs.rescore import rescore
from evalkit.runs.seal import read_seal_content, store_seal, write_seal
from evalkit.runs.signature import sign_run, signed_state, signer, verify_signed
from evalkit.runs.verify import verify

pytest.importorskip("cryptography", reason="the extra sign isn't installed")
OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="openssl isn't installed")


def openssl(*words: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pairs of PEM keys as openssl writes them, and keys of other kinds."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ours", "theirs"):
        openssl("genpkey", "-algorithm", "ed25519", "-out", folder / f"{name}.pem")
        openssl("pkey", "-in", folder / f"{name}.pem", "-pubout", "-out", folder / f"{name}.pub")
    openssl("genpkey", "-algorithm", "x25519", "-out", folder / "x25519.pem")
    openssl("pkey", "-in", folder / "x25519.pem", "-pubout", "-out", folder / "x25519.pub")
    locked = ("-aes-256-cbc", "-pass", "pass:secret")
    openssl("genpkey", "-algorithm", "ed25519", *locked, "-out", folder / "locked.pem")
    return folder


@pytest.fixture
def signed(run: RunFolder, keys: Path) -> RunFolder:
    """Signed with our key."""
    sign_run(run, keys / "ours.pem")
    return run


def found(run: RunFolder, key: Path) -> list[str]:
    return [str(difference) for difference in verify_signed(run, key)]


def test_a_signed_run_verifies_with_its_key_and_without_any(signed: RunFolder, keys: Path) -> None:
    assert found(signed, keys / "ours.pub") == []
    assert verify(signed) == []
    assert str(signed_state(signed, keys / "ours.pub", [])).startswith("valid, by key ")
    assert "not checked" in str(signed_state(signed, None, []))


def test_the_reports_name_the_key(signed: RunFolder) -> None:
    (page,) = write_reports(signed, ("html",)).values()
    assert str(signer(signed)) in page.read_text()


def test_an_unsigned_run_is_named(run: RunFolder, keys: Path) -> None:
    assert found(run, keys / "ours.pub") == ["seal.json: unsigned: it carries no signature"]
    assert verify(run) == []
    assert signed_state(run, None, []) is None


def test_another_key_is_named(signed: RunFolder, keys: Path) -> None:
    (difference,) = found(signed, keys / "theirs.pub")
    assert difference.startswith("seal.json: signed with another key: ")
    assert str(signer(signed))[:12] in difference


def test_a_run_that_was_changed_and_sealed_again_is_named(signed: RunFolder, keys: Path) -> None:
    """The old signature under new digests doesn't fit; without one the run is unsigned."""
    content = read_seal_content(signed.path)
    rest = {name: value for name, value in content.items() if name not in ("signature", "seal_sha256")}
    rest["files"]["plan.json"]["bytes"] += 1
    store_seal(signed.path, {**rest, "signature": content["signature"]})
    assert any(
        "seal.json: changed: the signature doesn't fit" in line for line in found(signed, keys / "ours.pub")
    )
    write_seal(signed.path)
    assert found(signed, keys / "ours.pub") == ["seal.json: unsigned: it carries no signature"]


def test_an_edited_file_is_named_beside_a_signature_that_holds(signed: RunFolder, keys: Path) -> None:
    data = bytearray(signed.results.read_bytes())
    data[len(data) // 2] ^= 1
    signed.results.write_bytes(bytes(data))
    (difference,) = found(signed, keys / "ours.pub")
    assert difference.startswith("results.json: edited")


@pytest.mark.parametrize(
    "signature",
    [
        None,
        "text",
        {},
        {"algorithm": "ed25519"},
        {"algorithm": "ed25519", "value": "!"},
        {"algorithm": "rsa", "value": ""},
    ],
)
def test_a_malformed_signature_is_never_valid(signed: RunFolder, keys: Path, signature: object) -> None:
    content = read_seal_content(signed.path)
    rest = {name: value for name, value in content.items() if name not in ("signature", "seal_sha256")}
    store_seal(signed.path, {**rest, "signature": signature})
    (difference,) = found(signed, keys / "ours.pub")
    assert difference.startswith("seal.json: ")


def test_a_key_that_the_seal_claims_but_that_did_not_sign_is_not_believed(
    signed: RunFolder, keys: Path
) -> None:
    """The seal names our key, but the signature is of theirs."""
    ours = read_seal_content(signed.path)["signature"]["public_key"]
    sign_run(signed, keys / "theirs.pem")
    content = read_seal_content(signed.path)
    del content["seal_sha256"]
    content["signature"]["public_key"] = ours
    store_seal(signed.path, content)
    assert found(signed, keys / "ours.pub") == [
        "seal.json: changed: the signature doesn't fit what it stands for"
    ]


def test_openssl_agrees(signed: RunFolder, keys: Path, tmp_path: Path) -> None:
    """A second implementation: the signed bytes are the canonical seal without signature and digest."""
    content = json.loads(signed.seal.read_bytes())
    signature = base64.b64decode(content.pop("signature")["value"])
    del content["seal_sha256"]
    (tmp_path / "message").write_bytes(canonical_json(content))
    (tmp_path / "value").write_bytes(signature)
    words = ("-verify", "-pubin", "-inkey", keys / "ours.pub", "-rawin", "-in", tmp_path / "message")
    done = openssl("pkeyutl", *words, "-sigfile", tmp_path / "value")
    assert b"Verified Successfully" in done.stdout


def test_a_broken_run_is_not_signed(run: RunFolder, keys: Path) -> None:
    run.results.write_bytes(run.results.read_bytes() + b"\n")
    before = run.seal.read_bytes()
    with pytest.raises(InputError, match=r"isn't signed: results\.json"):
        sign_run(run, keys / "ours.pem")
    assert run.seal.read_bytes() == before


def test_a_rescored_run_has_to_be_signed_again(
    signed: RunFolder, keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rescore(signed)
    assert found(signed, keys / "ours.pub") == ["seal.json: unsigned: it carries no signature"]
    assert "sign it again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.pem", "no such key file"),
        # The advice never names the given file: openssl would overwrite it.
        ("ours.pub", r"not a private key in PEM; make one with `[^`]* -out NEW\.pem`"),
        ("x25519.pem", "another kind"),
        ("locked.pem", "encrypted"),
    ],
)
def test_an_unusable_private_key_is_one_line(run: RunFolder, keys: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sign_run(run, keys / name)


@pytest.mark.parametrize(
    ("name", "message"),
    [("absent.pub", "no such key file"), ("ours.pem", "not a public key"), ("x25519.pub", "another kind")],
)
def test_an_unusable_public_key_is_one_line(signed: RunFolder, keys: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        verify_signed(signed, keys / name)


def flips(run: RunFolder, key: Path, number: int) -> None:
    """Random positions over all bytes outside reports/, so that large files get more; each is named."""
    generator = random.Random(31)
    files = sorted(path for path in run.path.rglob("*") if path.is_file())
    sizes = [path.stat().st_size for path in files]
    for _ in range(number):
        (path,) = generator.choices(files, sizes)
        before = path.read_bytes()
        data = bytearray(before)
        position = generator.randrange(len(data))
        data[position] ^= generator.randrange(1, 256)
        path.write_bytes(bytes(data))
        name = path.relative_to(run.path).as_posix()
        for differences in (verify(run), verify_signed(run, key)):
            assert name in {difference.path for difference in differences}, f"{name} at {position}"
        path.write_bytes(before)
    assert verify_signed(run, key) == []


def test_one_flipped_byte_in_a_signed_run_is_named(signed: RunFolder, keys: Path) -> None:
    flips(signed, keys / "ours.pub", 12)


@pytest.mark.slow
def test_200_flipped_bytes_in_a_signed_run_are_named(signed: RunFolder, keys: Path) -> None:
    """The acceptance: also with the signature in the seal, and any change of a byte, not of one bit only."""
    flips(signed, keys / "ours.pub", 200)
