"""TLS is all or nothing: half of its files, or files that don't fit, never give a plaintext port."""

from pathlib import Path

import pytest

from evalkit.errors import InputError
from sandbox.tls import TlsOptions, check_plaintext, server_credentials
from tests.sandbox.security.certificates import Certificates, make_certificates


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


def test_no_option_is_plaintext_and_both_are_tls(files: Certificates) -> None:
    assert server_credentials(TlsOptions()) is None
    assert server_credentials(TlsOptions(files.cert, files.key)) is not None
    assert server_credentials(TlsOptions(files.cert, files.key, files.ca)) is not None


@pytest.mark.parametrize(
    "given", [("cert",), ("key",), ("client_ca",), ("cert", "client_ca"), ("key", "client_ca")]
)
def test_s46_half_of_tls_is_refused(files: Certificates, given: tuple[str, ...]) -> None:
    all_of_it = {"cert": files.cert, "key": files.key, "client_ca": files.ca}
    with pytest.raises(InputError, match="is missing; TLS needs --tls-cert and --tls-key"):
        server_credentials(TlsOptions(**{name: all_of_it[name] for name in given}))


def test_files_that_dont_belong_together_are_refused(files: Certificates, tmp_path: Path) -> None:
    other = make_certificates(tmp_path)
    with pytest.raises(InputError, match="can't be used together"):
        server_credentials(TlsOptions(files.cert, other.key))
    with pytest.raises(InputError, match="can't be used together"):
        server_credentials(TlsOptions(files.key, files.key))


def test_a_key_with_a_passphrase_is_refused_without_asking_for_it(
    files: Certificates, tmp_path: Path
) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(InputError, match="without a passphrase"):
        server_credentials(TlsOptions(files.cert, locked))


def test_unreadable_and_empty_files_are_named(files: Certificates, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--tls-key: .*none\.key: No such file"):
        server_credentials(TlsOptions(files.cert, tmp_path / "none.key"))
    empty = tmp_path / "empty.pem"
    empty.touch()
    with pytest.raises(InputError, match=r"--client-ca: .*holds no certificate"):
        server_credentials(TlsOptions(files.cert, files.key, empty))


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:50051", "[::1]:0", "127.8.9.1:1"])
def test_loopback_may_be_plaintext(listen: str) -> None:
    check_plaintext(listen, allowed=False)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:50051", "192.0.2.1:1"])
def test_other_addresses_need_tls_or_the_operators_word(listen: str) -> None:
    with pytest.raises(InputError, match="say --allow-plaintext"):
        check_plaintext(listen, allowed=False)
    check_plaintext(listen, allowed=True)


@pytest.mark.parametrize("listen", ["nobody.invalid:0", "127.0.0.1:1:2", f"{'a' * 70}:0"])
def test_a_host_that_is_none_is_said_to_be_none(listen: str) -> None:
    with pytest.raises(InputError, match=r"--listen: .*no host that this machine knows"):
        check_plaintext(listen, allowed=False)
