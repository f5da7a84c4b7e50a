"""Prepared data on disk, named by what it was made of: made once, whole or not at all, checked at every use."""

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evalkit.canonical import sha256_file, sha256_json
from evalkit.console import say
from evalkit.errors import InputError
from evalkit.files import folder_atomic, write_json_atomic
from trainer.data.mindrecord import RowFile

META = "data.json"


class FileDigest(BaseModel):
    """SHA-256 of one file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: str
    bytes: int


class PreparedMeta(BaseModel):
    """`data.json`.

    Attributes:
        inputs: everything that the content depends on; its digest is the folder's name.
        train, validation: the files with the rows, in order.
        facts: what cleaning and packing did; shown, and stored with the run.
        files: every other file of the folder.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    schema_: Literal["trainer.data/1"] = Field(default="trainer.data/1", alias="schema")
    inputs: dict[str, Any]
    train: list[RowFile]
    validation: list[RowFile]
    facts: dict[str, Any]
    files: dict[str, FileDigest]


Build = Callable[[Path], tuple[list[RowFile], list[RowFile], dict[str, Any]]]


def prepared(home: Path, inputs: dict[str, Any], build: Build) -> tuple[Path, PreparedMeta]:
    """The folder for `inputs`, made by `build` where there is none yet.

    Several processes may ask at once: one builds, the others wait. A folder whose content isn't what its digests say is
    built again.

    Args:
        home: folders are in here.
        inputs: what the content depends on, as JSON.
        build: fills an empty folder; returns the files of training and validation rows, and the facts to keep.

    Raises:
        InputError: what `build` raises, or the disk is full; nothing half-made is left.
    """
    key = sha256_json(inputs)
    folder = home / key
    home.mkdir(parents=True, exist_ok=True)
    with _lock(home / f"{key}.lock"):
        if folder.exists():
            meta, problem = _verified(folder)
            if meta is not None:
                return folder, meta
            say(f"{folder}: {problem}; the data is prepared again")
            shutil.rmtree(folder)
        for left in home.glob(f".{key}.*"):  # of a process that was killed while it built
            shutil.rmtree(left, ignore_errors=True)
        try:
            meta = _build(folder, inputs, build)
        except OSError as error:
            raise InputError(
                f"{error.filename or folder}: {error.strerror}; the data can't be prepared: free some space, or set "
                "EVALKIT_HOME to another disk"
            ) from None
    return folder, meta


def _build(folder: Path, inputs: dict[str, Any], build: Build) -> PreparedMeta:
    with folder_atomic(folder) as staging:
        train, validation, facts = build(staging)
        files = {path.name: _digest(path) for path in sorted(staging.iterdir())}
        meta = PreparedMeta(inputs=inputs, train=train, validation=validation, facts=facts, files=files)
        write_json_atomic(staging / META, meta.model_dump(by_alias=True, mode="json"))
    return meta


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("wb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _digest(path: Path) -> FileDigest:
    return FileDigest(sha256=sha256_file(path), bytes=path.stat().st_size)


def _verified(folder: Path) -> tuple[PreparedMeta | None, str]:
    try:
        meta = PreparedMeta.model_validate(orjson.loads((folder / META).read_bytes()))
    except (OSError, orjson.JSONDecodeError, ValidationError):
        return None, f"{META} is missing or broken"
    if sha256_json(meta.inputs) != folder.name:
        return None, f"{META} doesn't belong to this folder"
    for name, expected in meta.files.items():
        path = folder / name
        if not path.is_file():
            return None, f"{name} is missing"
        if _digest(path) != expected:
            return None, f"{name} has another SHA-256 than when it was written"
    return meta, ""
