"""The connection to a sandbox: plain on this machine, TLS and a bearer token beyond it."""

from ipaddress import ip_address

import grpc

from evalkit.errors import InputError
from evalkit.replay.access import Access, read_file

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
        read_file(access.ca, "authority"),
        None if access.key is None else read_file(access.key, "key"),
        None if access.cert is None else read_file(access.cert, "certificate"),
    )
    return grpc.secure_channel(address, credentials, options=_OPTIONS), metadata


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
