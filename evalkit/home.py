"""Where evalkit keeps what outlives a run: `$EVALKIT_HOME`, by default `.evalkit` in the working directory."""

import os
from pathlib import Path

VARIABLE = "EVALKIT_HOME"


def evalkit_home() -> Path:
    """The folder; it need not exist yet."""
    return Path(os.environ.get(VARIABLE) or ".evalkit")
