"""Projections of a run for people and for CI. They compute nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evalkit.runs.folder import RunFolder

__all__ = ["write_reports"]


def write_reports(folder: "RunFolder", formats: Sequence[str], lang: str = "en") -> dict[str, Path]:
    """Write reports/ of a finished run; see `evalkit.report.write`."""
    # The template engine loads here, so that commands that print to the terminal start fast.
    from evalkit.report.write import write_reports as write

    return write(folder, formats, lang)
