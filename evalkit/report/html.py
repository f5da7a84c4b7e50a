"""The HTML report: one file, no network, no script."""

import re
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from evalkit.report import numbers
from evalkit.report.text import visible
from evalkit.report.view import ReportView

_TEMPLATES = Path(__file__).parent / "templates"


def render_html(view: ReportView) -> str:
    """The whole page; the template engine escapes every value."""
    # The style sheet is ours and no data: it isn't escaped.
    style = Markup((_TEMPLATES / "report.css").read_text(encoding="utf-8"))
    return _environment().get_template("report.html.j2").render(view=view, style=style)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["short_digest"] = numbers.short_digest
    environment.filters["breakable"] = _breakable
    return environment


def _breakable(name: str) -> Markup:
    """A metric's name that may break after `/` and `_`, and nowhere else."""
    # str(): joining the pieces of a Markup would escape the break itself.
    return Markup(re.sub(r"([/_])", r"\1<wbr>", str(escape(visible(name)))))


def _shown(value: object) -> object:
    """Every text that the template prints passes here, so that none can hide or reorder characters."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
