"""The seal: a digest of every file of a finished run, so that a later edit of any of them is found.

What is judged and projected later (verdict.json, verdicts/, reports/) stays outside: it can be recomputed. A seal may
carry a signature (see `evalkit.runs.signature`); `seal_sha256` is over everything else in it, the signature included.
"""

from pathlib import Path
from typing import Any

from evalkit.canonical import canonical_json, sha256_file, sha256_json
from evalkit.errors import InputError
from evalkit.files import write_bytes_atomic
from evalkit.runs.folder import RunFolder
from evalkit.runs.json_fields import Reader, read_json

SCHEMA = "evalkit.seal/1"

_UNSEALED_FILES = frozenset({"seal.json", "verdict.json"})
_UNSEALED_FOLDERS = frozenset({"verdicts", "reports"})


def write_seal(run: Path) -> dict[str, Any]:
    """Seal a finished run folder; an older seal is replaced at once.

    Returns:
        The content of seal.json.

    Raises:
        InputError: the folder holds something that isn't a regular file.
    """
    files = {
        name: {"sha256": sha256_file(run / name), "bytes": (run / name).stat().st_size}
        for name in sealed_names(run)
    }
    return store_seal(run, {"schema": SCHEMA, "files": files})


def store_seal(run: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Write seal.json: `content` and its digest, which is returned with it."""
    whole = {**content, "seal_sha256": sha256_json(content)}
    write_bytes_atomic(RunFolder(run).seal, canonical_json(whole))
    return whole


def sealed_names(run: Path) -> list[str]:
    """Paths of the files that a seal covers, relative to the run, sorted.

    Raises:
        InputError: a link or a special file lies there.
    """
    names = []
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run)
        if name.parts[0] in _UNSEALED_FOLDERS or str(name) in _UNSEALED_FILES:
            continue
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise InputError(f"{path}: not a regular file; a run holds nothing else, remove it")
        if path.is_file():
            names.append(name.as_posix())
    return names


def read_seal(run: Path) -> dict[str, dict[str, Any]]:
    """The sealed files with digest and size.

    Raises:
        InputError: no seal, or one that doesn't fit itself.
    """
    path = RunFolder(run).seal
    files: dict[str, dict[str, Any]] = {}
    for name, entry in Reader(read_seal_content(run), str(path)).mapping("files").items():
        fields = Reader(entry, f"{path}: files.{name}")
        files[name] = {"sha256": fields.text("sha256"), "bytes": fields.integer("bytes")}
    return files


def seal_digest(run: Path) -> str:
    """`seal_sha256` of a seal that fits itself.

    Raises:
        InputError: no seal, or one that doesn't fit itself.
    """
    return str(read_seal_content(run)["seal_sha256"])


def read_seal_content(run: Path) -> dict[str, Any]:
    """seal.json, checked against itself.

    Raises:
        InputError: no seal, or one that doesn't fit itself.
    """
    path = RunFolder(run).seal
    content = read_json(path)
    reader = Reader(content, str(path))
    reader.one_of("schema", (SCHEMA,))
    claimed = reader.text("seal_sha256")
    if sha256_json({key: value for key, value in content.items() if key != "seal_sha256"}) != claimed:
        raise InputError(f"{path}: seal_sha256 doesn't fit the content; the seal was edited")
    # Canonical to the byte, so that no edit of it goes unseen.
    if canonical_json(content) != path.read_bytes():
        raise InputError(f"{path}: isn't canonical JSON; the seal was edited")
    return content
