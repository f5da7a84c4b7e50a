"""Where evalkit keeps what outlives a run: `$EVALKIT_HOME`, by default `.evalkit` in the working directory."""

import os
from pathlib import Path

from evalkit.errors import InputError

VARIABLE = "EVALKIT_HOME"


def evalkit_home() -> Path:
    """The folder; it need not exist yet.

    Raises:
        InputError: what has its name isn't a folder.
    """
    path = Path(os.environ.get(VARIABLE) or ".evalkit")
    if path.exists() and not path.is_dir():
        raise InputError(
            f"{path}: is a file, a folder is needed; let {VARIABLE} name a folder, or move the file away"
        )
    return path
