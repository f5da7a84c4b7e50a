"""Write the projections of a run."""

from collections.abc import Callable, Sequence
from pathlib import Path

from evalkit.files import write_bytes_atomic
from evalkit.report.html import render_html
from evalkit.report.junit import render_junit
from evalkit.report.language import Language, language
from evalkit.report.markdown import render_markdown
from evalkit.report.source import load_source
from evalkit.report.view import ReportView, build_view
from evalkit.runs.folder import RunFolder

FILES: dict[str, tuple[str, Callable[[ReportView, Language], str]]] = {
    "html": ("report.html", render_html),
    "markdown": ("report.md", render_markdown),
    "junit": ("junit.xml", render_junit),
}


def write_reports(folder: RunFolder, formats: Sequence[str], lang: str = "en") -> dict[str, Path]:
    """Write reports/ of a finished run.

    Args:
        folder: the run.
        formats: of html, markdown, junit.
        lang: en or zh.

    Returns:
        Path of each format.

    Raises:
        InputError: a file of the run is missing or damaged, or there is no such language.
    """
    say = language(lang)
    view = build_view(load_source(folder))
    written = {}
    for name in formats:
        file, render = FILES[name]
        path = folder.reports / file
        write_bytes_atomic(path, render(view, say).encode("utf-8", "replace"))
        written[name] = path
    return written
