"""TLS, client certificates and bearer tokens, with real certificates; no secret leaves in plain text."""

from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import trustme

from evalkit.errors import InputError
from evalkit.replay.access import Access
from evalkit.replay.client import SandboxClient, SandboxError
from evalkit.wire.sandbox_pb2_grpc import add_SandboxServicer_to_server
from tests.support.fake_sandbox import Answer, FakeSandbox, FakeSession


@dataclass
class Secured:
    """A server that asks for a client's certificate and keeps the metadata of calls."""

    address: str
    files: Path
    authorizations: list[str]


class Recorder(grpc.ServerInterceptor):
    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    def intercept_service(self, continuation, details):  # type: ignore[no-untyped-def]
        self.seen += [str(value) for key, value in details.invocation_metadata if key == "authorization"]
        return continuation(details)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    other.cert_pem.write_to_path(tmp_path / "other.pem")
    mine = authority.issue_cert("client")
    mine.private_key_pem.write_to_path(tmp_path / "key.pem")
    mine.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    own = authority.issue_cert("localhost")
    credentials = grpc.ssl_server_credentials(
        [(own.private_key_pem.bytes(), own.cert_chain_pems[0].bytes())],
        root_certificates=authority.cert_pem.bytes(),
        require_client_auth=True,
    )
    seen: list[str] = []
    server = grpc.server(futures.ThreadPoolExecutor(2), interceptors=[Recorder(seen)])

    def answer(session: FakeSession, text: str) -> Answer:
        return Answer("hi")

    add_SandboxServicer_to_server(FakeSandbox(answer), server)
    port = server.add_secure_port("localhost:0", credentials)
    server.start()
    yield Secured(f"localhost:{port}", tmp_path, seen)
    server.stop(0).wait()


def test_mutual_tls_and_a_token(secured: Secured) -> None:
    files = secured.files
    (files / "token").write_text("sesame\n")
    access = Access(files / "ca.pem", files / "cert.pem", files / "key.pem", files / "token")
    with SandboxClient(secured.address, access) as client:
        assert client.describe().engine == "fake"
    assert secured.authorizations == ["Bearer sesame"]


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
