"""PEM files as gRPC will use them: it takes any bytes, and then fails at each handshake without saying why."""

import ssl
from pathlib import Path


def pair_problem(cert: Path, key: Path) -> str | None:
    """Why a certificate and a private key can't be used together; None if they can.

    Raises:
        OSError: a file can't be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # An encrypted key would otherwise ask for its passphrase on the terminal.
        context.load_cert_chain(cert, key, password="")
    except (ssl.SSLError, ValueError) as error:
        return getattr(error, "reason", None) or "no PEM certificate and key"
    return None


def holds_certificates(path: Path) -> bool:
    """Whether a file holds a certificate of an authority.

    Raises:
        OSError: the file can't be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, ValueError):
        return False
    return bool(context.cert_store_stats()["x509"])
