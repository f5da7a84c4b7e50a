"""TLS is all or nothing: half of its files, files that don't fit, or a plaintext port for other machines are refused."""

import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path

import grpc

from evalkit.errors import InputError
from evalkit.pem import holds_certificates, pair_problem


@dataclass(frozen=True)
class TlsOptions:
    """Files of TLS, PEM; None where not given.

    Attributes:
        cert, key: the server's certificate chain and its private key.
        client_ca: authorities of client certificates; with it every client must show one (mutual TLS).
    """

    cert: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None


def server_credentials(options: TlsOptions) -> grpc.ServerCredentials | None:
    """Credentials of the port; None for plaintext.

    Raises:
        InputError: only some of the files are given, one can't be read, or they don't belong together.
    """
    if options.cert is None and options.key is None and options.client_ca is None:
        return None
    if options.cert is None or options.key is None:
        missing = "--tls-cert" if options.cert is None else "--tls-key"
        raise InputError(f"{missing}: is missing; TLS needs --tls-cert and --tls-key, or none of its options")
    cert, key = _read("--tls-cert", options.cert), _read("--tls-key", options.key)
    _check_pair(options.cert, options.key)
    if options.client_ca is None:
        return grpc.ssl_server_credentials([(key, cert)])
    client_ca = _read("--client-ca", options.client_ca)
    _check_authorities(options.client_ca)
    return grpc.ssl_server_credentials([(key, cert)], root_certificates=client_ca, require_client_auth=True)


def check_plaintext(listen: str, allowed: bool) -> None:
    """Refuse a port without TLS that other machines can reach, unless the operator asks for it.

    Raises:
        InputError: `listen` isn't this machine's loopback and plaintext isn't allowed, or its host is unknown.
    """
    host = listen.rpartition(":")[0]
    if not allowed and not _is_loopback(host):
        raise InputError(
            f"--listen: {host} can be reached from other machines and there is no TLS; give --tls-cert and --tls-key,"
            " listen on 127.0.0.1, or say --allow-plaintext"
        )


def _is_loopback(host: str) -> bool:
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(host.strip("[]"), None)}
    except (OSError, UnicodeError):  # the second of names that no name can be
        raise InputError(
            f"--listen: {host}: is no host that this machine knows; give a name or an address of its own"
        ) from None
    return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in addresses)


def _read(option: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{option}: {path}: {error.strerror}; give a readable PEM file") from None


def _check_pair(cert: Path, key: Path) -> None:
    reason = pair_problem(cert, key)
    if reason is not None:
        raise InputError(
            f"--tls-cert, --tls-key: {cert} and {key} can't be used together ({reason}); give a PEM certificate chain and"
            " its own key, without a passphrase"
        )


def _check_authorities(path: Path) -> None:
    if not holds_certificates(path):
        raise InputError(f"--client-ca: {path}: holds no certificate; give the authorities as PEM")
