"""Refuse what isn't a file before it is opened (reading a pipe that nobody writes to never ends), and name files."""

import os
import stat
from pathlib import Path

from evalkit.errors import InputError


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


def shown_path(path: Path) -> str:
    """A path as text that can be written: bytes of a name that aren't UTF-8 are shown as \\xNN."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
