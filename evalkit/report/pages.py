"""What every HTML page of the project shares: how its templates are filled in."""

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from evalkit.report.text import visible


@cache
def page_templates(folder: Path) -> Environment:
    """The templates of a folder: values are escaped, invisible characters shown, and a missing value is an error."""
    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _shown(value: object) -> object:
    """Every text that a template prints passes here, so that none can hide or reorder characters."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
