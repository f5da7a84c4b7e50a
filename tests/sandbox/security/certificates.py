"""Real certificates for tests: an authority, a server, clients, and a stranger."""

from dataclasses import dataclass
from pathlib import Path

import grpc
import trustme


@dataclass(frozen=True)
class Certificates:
    """PEM files of one authority and a server, and the means of its clients.

    Attributes:
        ca, cert, key: files for the server.
        ca_pem: what clients trust.
        client_pem: key and certificate of a client of the authority.
        stranger_pem: of a client of another authority.
        stranger_ca_pem: that other authority.
    """

    ca: Path
    cert: Path
    key: Path
    ca_pem: bytes
    client_pem: tuple[bytes, bytes]
    stranger_pem: tuple[bytes, bytes]
    stranger_ca_pem: bytes

    def options(self) -> list[str]:
        """Options of the server for mutual TLS."""
        return [f"--tls-cert={self.cert}", f"--tls-key={self.key}", f"--client-ca={self.ca}"]

    def client(self, token: str | None = None) -> grpc.ChannelCredentials:
        """Credentials of a good client."""
        key, cert = self.client_pem
        channel = grpc.ssl_channel_credentials(self.ca_pem, key, cert)
        if token is None:
            return channel
        return grpc.composite_channel_credentials(channel, grpc.access_token_call_credentials(token))


def make_certificates(folder: Path) -> Certificates:
    """Write the files into a folder."""
    authority, other = trustme.CA(), trustme.CA()
    server = authority.issue_cert("127.0.0.1", "localhost")
    client, stranger = authority.issue_cert("client.test"), other.issue_cert("client.test")
    ca, cert, key = folder / "ca.pem", folder / "server.pem", folder / "server.key"
    authority.cert_pem.write_to_path(str(ca))
    for index, blob in enumerate(server.cert_chain_pems):
        blob.write_to_path(str(cert), append=index > 0)
    server.private_key_pem.write_to_path(str(key))
    return Certificates(
        ca=ca,
        cert=cert,
        key=key,
        ca_pem=authority.cert_pem.bytes(),
        client_pem=(client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes()),
        stranger_pem=(stranger.private_key_pem.bytes(), stranger.cert_chain_pems[0].bytes()),
        stranger_ca_pem=other.cert_pem.bytes(),
    )
