"""The HTML report: one file, no network, no script."""

import re
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape

from evalkit.report import numbers
from evalkit.report.charts import Strip
from evalkit.report.language import ENGLISH, Language
from evalkit.report.pages import page_templates
from evalkit.report.text import visible
from evalkit.report.view import ReportView

_TEMPLATES = Path(__file__).parent / "templates"


def render_html(view: ReportView, say: Language = ENGLISH) -> str:
    """The whole page in one language; the template engine escapes every value."""
    # The style sheet is ours and no data: it isn't escaped.
    style = Markup((_TEMPLATES / "report.css").read_text(encoding="utf-8"))
    template = _environment().get_template("report.html.j2")
    return template.render(view=view, style=style, say=say)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = page_templates(_TEMPLATES)
    environment.filters["short_digest"] = numbers.short_digest
    environment.filters["breakable"] = _breakable
    environment.filters["drawn"] = _drawn
    environment.filters["say"] = _said
    return environment


@pass_context
def _drawn(context: Context, strip: Strip | None) -> Markup:
    """A row of a chart; nothing where there is no value to draw."""
    say: Language = context["say"]
    return Markup("") if strip is None else strip.svg(say)


@pass_context
def _said(context: Context, text: str) -> str:
    say: Language = context["say"]
    return say(text)


def _breakable(name: str) -> Markup:
    """A metric's name that may break after `/` and `_`, and nowhere else."""
    # str(): joining the pieces of a Markup would escape the break itself.
    return Markup(re.sub(r"([/_])", r"\1<wbr>", str(escape(visible(name)))))
