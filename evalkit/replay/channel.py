"""The connection to a sandbox: plain on this machine, TLS and a bearer token beyond it."""

from ipaddress import ip_address

import grpc

from evalkit.errors import InputError
from evalkit.pem import holds_certificates, pair_problem
from evalkit.replay.access import Access, read_file
from evalkit.replay.faults import SandboxError

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
    _check_pem(access)
    credentials = grpc.ssl_channel_credentials(
        read_file(access.ca, "authority"),
        None if access.key is None else read_file(access.key, "key"),
        None if access.cert is None else read_file(access.cert, "certificate"),
    )
    return grpc.secure_channel(address, credentials, options=_OPTIONS), metadata


def _check_pem(access: Access) -> None:
    """Read the files as gRPC will.

    Raises:
        InputError: a file can't be read, holds no PEM, or certificate and key don't belong together.
    """
    if access.ca is not None:
        read_file(access.ca, "authority")
        if not holds_certificates(access.ca):
            raise InputError(f"{access.ca}: authority: holds no certificate; give a PEM file")
    if access.cert is not None and access.key is not None:
        read_file(access.cert, "certificate")
        read_file(access.key, "key")
        reason = pair_problem(access.cert, access.key)
        if reason is not None:
            raise InputError(
                f"{access.cert} and {access.key} can't be used together ({reason}); give a PEM certificate and its own key,"
                " without a passphrase"
            )


def unreachable(address: str, access: Access, timeout_s: float, reason: str) -> Exception:
    """The error of a server to which no connection came about.

    Args:
        address: of the server.
        access: how the client showed itself.
        timeout_s: how long it tried.
        reason: what gRPC says of its last attempt; "" if nothing.
    """
    last = reason.rpartition("last error: ")[2]
    if "handshake failed" in last:
        if "WRONG_VERSION_NUMBER" in last:
            told = "it speaks no TLS; leave out the authority's file (ca), or ask its operator for TLS"
        elif "CERTIFICATE_VERIFY_FAILED" in last:
            told = (
                "its certificate isn't of the given authority; give the file (ca) of the one that signed it"
            )
        else:
            told = f"the TLS handshake failed ({last}); give the files that belong to this server"
        return InputError(f"sandbox: {address}: {told}")
    hint = ""
    if "Socket closed" in last or "reset" in last.lower():
        # What a server that wants TLS, or another certificate, does; a crash looks the same.
        if access.ca is None:
            hint = "; it hangs up: if it wants TLS, give its authority's file (ca)"
        elif access.cert is None:
            hint = "; it hangs up: if it asks for a client certificate, give one with its key"
        else:
            hint = "; it hangs up: it may not take this client certificate"
    told = f" ({last})" if last else ""
    return SandboxError("UNAVAILABLE", f"no answer from {address} within {timeout_s:g} s{told}{hint}")


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
