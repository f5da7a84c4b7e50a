"""Files and folders that appear whole or not at all."""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evalkit.errors import InputError


def write_bytes_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path`: a temporary file beside it, fsync, rename.

    Raises:
        OSError: it can't be written; the error names `path`, not the temporary file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _told_of(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "is a folder, a file is needed")
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        staging = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            # mkstemp makes the file private to its owner; the usual umask applies to what we publish.
            staging.chmod(0o666 & ~_umask())
            staging.replace(path)
        except BaseException:
            staging.unlink(missing_ok=True)
            raise


def write_json_atomic(path: Path, value: Any) -> None:
    """Write `value` as indented JSON for people to read; NaN and infinities are refused."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    write_bytes_atomic(path, (text + "\n").encode())


@contextmanager
def folder_atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path` when the block ends without an error.

    Raises:
        InputError: `path` exists already.
    """
    if path.exists():
        raise InputError(f"{path}: exists already; remove it or choose another folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield staging
        for entry in [*staging.rglob("*"), staging]:
            _sync(entry)
        staging.chmod(0o777 & ~_umask())
        staging.rename(path)
        _sync(path.parent)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def read_text(path: Path) -> str:
    """Read a UTF-8 text file.

    Raises:
        InputError: the file is missing, a folder, a named pipe, unreadable, or not UTF-8 text.
    """
    refuse_named_pipe(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; check the path") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, a file is needed") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError(
            f"{path}:{line}: not UTF-8 text (byte {error.start}); convert the file to UTF-8"
        ) from None


def refuse_named_pipe(path: Path) -> None:
    """Refuse a pipe in a folder: nobody may ever write to it. What a shell connects (/dev/stdin, /dev/fd) is read.

    Raises:
        InputError: a named pipe.
    """
    if path.is_fifo() and path.resolve().parts[1:2] not in (("dev",), ("proc",)):
        raise InputError(f"{path}: a pipe, a file is needed; save its content to a file")


def refuse_streams(path: Path) -> None:
    """Refuse what can be read once only: pipes, also those that a shell connects, and devices. For files that are read twice.

    Raises:
        InputError: neither a file nor a folder.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(f"{path}: a pipe or a device; a file is needed, save it as one first")


@contextmanager
def _told_of(path: Path) -> Iterator[None]:
    """Let errors name the file that was asked for."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def _sync(path: Path) -> None:
    # A rename may reach the disk before the bytes do: without this a power cut leaves empty files under final names.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
