"""The gRPC server object: its limits, its interceptors, its port."""

from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from evalkit.errors import InputError
from sandbox.limits import Limits

MAX_PORT = 65535


def make_server(limits: Limits, interceptors: Sequence[Any]) -> grpc.aio.Server:
    """A server without services and ports."""
    options = [
        ("grpc.max_receive_message_length", limits.max_message_bytes),
        ("grpc.max_send_message_length", limits.max_message_bytes),
        # A client whose machine vanished is noticed, and its turn cancelled, within 40 s.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # Otherwise a second server could bind the same port and take half of the calls.
        ("grpc.so_reuseport", 0),
    ]
    # A turn or a control call a session, and watchers; beyond that gRPC itself refuses with RESOURCE_EXHAUSTED.
    calls = 4 * limits.max_sessions + 256
    return grpc.aio.server(interceptors=list(interceptors), options=options, maximum_concurrent_rpcs=calls)


def bind(server: grpc.aio.Server, listen: str, credentials: grpc.ServerCredentials | None) -> str:
    """Listen on HOST:PORT, port 0 for a free one; the address bound.

    Raises:
        InputError: it's no address, taken, or not this machine's.
    """
    host = check_address(listen)
    try:
        bound = (
            server.add_insecure_port(listen)
            if credentials is None
            else server.add_secure_port(listen, credentials)
        )
    except RuntimeError:
        bound = 0
    if not bound:
        raise InputError(
            f"--listen: can't listen on {listen}; the port is taken or the host isn't this machine's"
        )
    return f"{host}:{bound}"


def check_address(listen: str, option: str = "--listen") -> str:
    """The host of HOST:PORT.

    Raises:
        InputError: it isn't of this form, or the port is too large.
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()):
        raise InputError(f"{option}: {listen!r} isn't HOST:PORT; write for example 127.0.0.1:0")
    if int(port) > MAX_PORT:
        raise InputError(
            f"{option}: {listen}: the port is above {MAX_PORT}; choose a lower one, or 0 for a free one"
        )
    return host
