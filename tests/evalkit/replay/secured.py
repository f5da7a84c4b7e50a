"""A sandbox without a model that asks for TLS and a client's certificate."""

from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import trustme

from evalkit.wire.sandbox_pb2_grpc import add_SandboxServicer_to_server
from tests.support.fake_sandbox import Answer, FakeSandbox, FakeSession


@dataclass
class Secured:
    """A server that asks for a client's certificate and keeps the metadata of calls."""

    address: str
    files: Path
    authorizations: list[str]


class Recorder(grpc.ServerInterceptor):
    """Keeps what callers show as authorization."""

    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    def intercept_service(self, continuation, details):  # type: ignore[no-untyped-def]
        self.seen += [str(value) for key, value in details.invocation_metadata if key == "authorization"]
        return continuation(details)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    """The server; `files` holds ca.pem, cert.pem, key.pem, and other.pem of a stranger."""
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
