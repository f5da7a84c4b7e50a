"""Refuse what isn't a file, or isn't text, before it is read (a pipe that nobody writes to never ends); name files."""

import os
import stat
from pathlib import Path

from evalkit.errors import InputError

_HEAD_BYTES = 4096
# gzip, bzip2, xz, Zstandard, zip
_PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")


def require_regular(path: Path) -> None:
    """Pass files; what doesn't exist and folders too, which whoever opens them reports better.

    Raises:
        InputError: a pipe, a socket or a device.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InputError(f"{path}: not a regular file (a pipe, socket or device); save its content to a file")


def why_not_text(path: Path) -> str:
    """Why a file can't be read as UTF-8 text, by its first bytes; empty where nothing speaks against it.

    Raises:
        OSError: it can't be opened.
    """
    with path.open("rb") as stream:
        head = stream.read(_HEAD_BYTES)
    if head.startswith(_PACKED):
        return "compressed data, unpack it"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16 text, convert it to UTF-8"
    if b"\0" in head:
        return "a binary file, or text in UTF-16"
    if not head.removeprefix(b"\xef\xbb\xbf").strip():
        return "empty"
    return ""


def shown_path(path: Path) -> str:
    """A path as text that can be written: bytes of a name that aren't UTF-8 are shown as \\xNN."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
