"""The connection to a sandbox: plain on this machine, TLS and a bearer token beyond it."""

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import grpc

from evalkit.errors import InputError

MAX_MESSAGE_BYTES = 16 << 20
# Both ends state their limit: the default of 4 MiB fails with a confusing number. A proxy from the environment must not
# get between two processes of one machine.
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
    # A server that went away and came back is tried again within a second, not after two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


@dataclass(frozen=True)
class Access:
    """How a client shows itself to a server. Without `ca` the connection is plain.

    Attributes:
        ca: PEM file of the authority that signed the server's certificate; its presence switches TLS on.
        cert, key: PEM files of the client's own certificate, for servers that ask for one.
        token_file: file that holds the bearer token and nothing else.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    token_file: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise InputError("a client's certificate and its key go together; give both files, or none")
        if self.cert is not None and self.ca is None:
            raise InputError("a client's certificate needs TLS; give the file of the authority (ca) too")

    def token(self) -> str | None:
        """The bearer token.

        Raises:
            InputError: the file can't be read, or holds no token.
        """
        if self.token_file is None:
            return None
        token = _read(self.token_file, "token file").decode(errors="replace").strip()
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise InputError(f"{self.token_file}: must hold one token of printable ASCII and nothing else")
        return token


def open_channel(address: str, access: Access) -> tuple[grpc.Channel, tuple[tuple[str, str], ...]]:
    """A channel, which connects when it is used, and the metadata for each call.

    Raises:
        InputError: a file can't be read, or a token would leave this machine in plain text.
    """
    token = access.token()
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    if access.ca is None:
        if token is not None and not _is_loopback(address):
            raise InputError(
                f"{address}: a token must not leave this machine in plain text; give the server's authority (ca) for TLS"
            )
        return grpc.insecure_channel(address, options=_OPTIONS), metadata
    credentials = grpc.ssl_channel_credentials(
        _read(access.ca, "authority"),
        None if access.key is None else _read(access.key, "key"),
        None if access.cert is None else _read(access.cert, "certificate"),
    )
    return grpc.secure_channel(address, credentials, options=_OPTIONS), metadata


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {what}: {error.strerror}; give a readable file") from None


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
