"""Identity is content: canonical JSON and SHA-256 digests.

Canonical JSON here: UTF-8, keys sorted, no white space, no NaN or infinity. Equal values give equal bytes.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

_CHUNK_BYTES = 1 << 20


def canonical_json(value: Any) -> bytes:
    """Encode `value` as canonical JSON.

    Raises:
        ValueError: the value holds NaN or an infinity.
        TypeError: the value holds something JSON can't carry.
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def sha256_bytes(data: bytes) -> str:
    """SHA-256 of `data` in lower-case hex."""
    return hashlib.sha256(data).hexdigest()


def sha256_text(text: str) -> str:
    """SHA-256 of the UTF-8 bytes of `text`; lone surrogates are kept apart, not refused."""
    return sha256_bytes(text.encode("utf-8", "surrogatepass"))


def sha256_json(value: Any) -> str:
    """SHA-256 of the canonical JSON of `value`."""
    return sha256_bytes(canonical_json(value))


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, read in chunks."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
