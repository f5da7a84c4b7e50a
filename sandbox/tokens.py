"""Bearer tokens: who may call, and as which tenant.

The file holds a line `TENANT:TOKEN` or `TENANT:sha256:HEX` a token; blank lines and lines that begin with # don't count.
A tenant may have several tokens, so that they can be changed one after the other. The server keeps only their SHA-256
and compares those in constant time, all of them each time.
"""

import asyncio
import hashlib
import hmac
import logging
import re
from collections.abc import Iterable
from pathlib import Path

from evalkit.errors import InputError
from sandbox.errors import UnauthenticatedError

log = logging.getLogger(__name__)

_RELOAD_INTERVAL_S = 1.0
_HASHED = "sha256:"
_HEX = re.compile(r"[0-9a-fA-F]{64}")
_SCHEME = "bearer "


class TokenFile:
    """The tokens of a file, read again when it changes."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            InputError: it can't be read, a line is broken, or it holds no token.
        """
        self._path = path
        self._mark = _mark_of(path)
        self._tenants = read_tokens(path)

    def tenant_of(self, metadata: Iterable[tuple[str, str | bytes]]) -> str:
        """The tenant whose token a call carries in `authorization: Bearer TOKEN`.

        Raises:
            UnauthenticatedError: no token, several, or an unknown one. The message doesn't say more than that.
        """
        headers = [value for key, value in metadata if key == "authorization"]
        if len(headers) != 1 or not isinstance(headers[0], str) or not headers[0].lower().startswith(_SCHEME):
            raise UnauthenticatedError(
                "metadata authorization: one 'Bearer TOKEN' is needed", reason="TOKEN_MISSING"
            )
        shown = hashlib.sha256(headers[0][len(_SCHEME) :].strip().encode()).digest()
        tenant: str | None = None
        for digest, owner in self._tenants.items():
            if hmac.compare_digest(digest, shown):
                tenant = owner
        if tenant is None:
            raise UnauthenticatedError("metadata authorization: the token isn't known here")
        return tenant

    def reload(self) -> None:
        """Read the file again; a broken one changes nothing and is told in the log, without its content."""
        mark = _mark_of(self._path)
        try:
            # A pipe would hold up every call until somebody writes to it.
            if self._path.exists() and not self._path.is_file():
                raise InputError(f"--tokens-file: {self._path}: isn't a regular file")
            self._tenants = read_tokens(self._path)
        except InputError as error:
            log.error("tokens kept as they were: %s", error)
        else:
            log.info("tokens read: %d", len(self._tenants))
        self._mark = mark

    async def follow(self) -> None:
        """Read the file again whenever it changes, for ever."""
        while True:
            await asyncio.sleep(_RELOAD_INTERVAL_S)
            if _mark_of(self._path) != self._mark:
                self.reload()


def read_tokens(path: Path) -> dict[bytes, str]:
    """SHA-256 of each token → its tenant.

    Raises:
        InputError: the file can't be read, a line is broken, or there is no token.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise InputError(f"--tokens-file: {path}: {error.strerror}; give a readable file") from None
    except UnicodeDecodeError:
        raise InputError(f"--tokens-file: {path}: isn't UTF-8 text") from None
    tenants: dict[bytes, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        tenant, digest = _parse(line.strip(), f"--tokens-file: {path}:{number}")
        if tenants.get(digest, tenant) != tenant:
            raise InputError(
                f"--tokens-file: {path}:{number}: another tenant has the same token; make a new one"
            )
        tenants[digest] = tenant
    if not tenants:
        raise InputError(
            f"--tokens-file: {path}: holds no token, so nobody could call; write lines TENANT:TOKEN"
        )
    return tenants


def _parse(line: str, where: str) -> tuple[str, bytes]:
    # Messages never quote the line: it holds a secret.
    tenant, colon, token = (part.strip() for part in line.partition(":"))
    if not colon or not tenant or not token:
        raise InputError(f"{where}: isn't TENANT:TOKEN or TENANT:sha256:HEX")
    if len(tenant.encode()) > 128 or not tenant.isprintable():
        raise InputError(f"{where}: the tenant's name is longer than 128 bytes or not printable")
    if not token.startswith(_HASHED):
        if not (token.isascii() and token.isprintable()) or " " in token:
            raise InputError(
                f"{where}: the token must be printable ASCII without blanks; a header carries nothing else"
            )
        return tenant, hashlib.sha256(token.encode()).digest()
    digest = token.removeprefix(_HASHED)
    if not _HEX.fullmatch(digest):
        raise InputError(f"{where}: sha256: must be followed by 64 hexadecimal digits")
    return tenant, bytes.fromhex(digest)


def _mark_of(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
