"""Which code made a number: digests of the packages' own source files, so that no edit goes by under one version."""

import hashlib
from importlib.util import find_spec
from pathlib import Path

# The sandbox answers the dialogues from a process of its own; it is found here, never imported.
_PACKAGES = ("evalkit", "sandbox")


def code_digests() -> dict[str, str | None]:
    """SHA-256 over the source files of each package that takes part in a run; None where it isn't installed."""
    return {name: _package_digest(name) for name in _PACKAGES}


def _package_digest(name: str) -> str | None:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
