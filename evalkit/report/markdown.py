"""The Markdown report: short enough for a comment on a merge request."""

import re
from collections.abc import Iterator

from evalkit.report import numbers
from evalkit.report.rules import RuleView
from evalkit.report.text import visible
from evalkit.report.view import ReportView

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+\-.!|~>])")
_MAX_DIALOGUES = 10
_EMOJI = {"PASS": "✅", "FAIL": "❌", "INCONCLUSIVE": "❔", "NOT_APPLIED": "➖"}


def render_markdown(view: ReportView) -> str:
    """Verdict, rules, headline figures, the dialogues that failed, and what was scored."""
    return "\n".join(_lines(view)).rstrip() + "\n"


def escape(text: str) -> str:
    """`text` as literal Markdown in one line: no markup, no HTML, no mention of anybody."""
    line = " ".join(visible(text).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace("@", "&#64;")
    return _SPECIAL.sub(r"\\\1", line)


def _lines(view: ReportView) -> Iterator[str]:
    verdict = view.verdict
    yield f"## {_EMOJI.get(verdict.word, '➖')} {verdict.word}: {escape(view.title)}"
    yield ""
    yield escape(verdict.meaning)
    if verdict.reason:
        yield ""
        yield f"**{escape(verdict.reason)}**"
    for model in view.models:
        yield ""
        yield f"{model.role.capitalize()}: {escape(model.name)} `{_code(numbers.short_digest(model.digest))}`"
    for notice in view.notices:
        yield ""
        yield f"> {escape(notice)}"
    yield from _rules(view)
    yield from _figures(view)
    yield from _robustness(view)
    yield from _dialogues(view)
    for sentence in view.promotions:
        yield ""
        yield f"Promotion: {escape(sentence)}"
    for side, sentence in view.conserved:
        yield ""
        yield f"{side}: {escape(sentence)}"
    if verdict.warning:
        yield ""
        yield f"> {escape(verdict.warning)}"
    if verdict.false_fail:
        yield ""
        yield f"{escape(verdict.false_fail)}"
    yield ""
    policy = f" · policy `{verdict.policy_sha256[:12]}`" if verdict.policy_sha256 else ""
    yield f"Run `{_code(view.run_id)}`{policy}"


def _rules(view: ReportView) -> Iterator[str]:
    if not view.rules:
        return
    yield ""
    yield "### Rules"
    yield ""
    yield "| | rule | demand | value | bounds | n | why, and what to do |"
    yield "|---|---|---|---:|---:|---:|---|"
    for rule in view.rules:
        yield _rule(rule)


def _rule(rule: RuleView) -> str:
    warn = " (warn)" if rule.severity == "warn" else ""
    why = [rule.reason]
    if rule.needs:
        why.append(f"needs n {rule.needs}")
    if rule.action:
        why.append(rule.action)
    cells = [rule.name + warn, rule.demand, rule.value, rule.interval, rule.n, "; ".join(why)]
    return f"| {_EMOJI[rule.outcome]} {rule.word} | " + " | ".join(escape(cell) for cell in cells) + " |"


def _figures(view: ReportView) -> Iterator[str]:
    if not view.figures:
        return
    yield ""
    yield "### Figures"
    yield ""
    yield "| figure | candidate | interval | baseline | change |"
    yield "|---|---:|---:|---:|---:|"
    for figure in view.figures:
        change = f"{figure.change.value} ({figure.change.word})" if figure.change else ""
        cells = [f"{figure.label} ({figure.name})", figure.value, figure.interval, figure.baseline, change]
        yield "| " + " | ".join(escape(cell) for cell in cells) + " |"


def _robustness(view: ReportView) -> Iterator[str]:
    if not view.robustness:
        return
    yield ""
    yield "### Robustness"
    yield ""
    yield "Paired differences to the clean texts."
    yield ""
    yield "| perturbation | metric | difference | interval | clean → perturbed | baseline | worst slice |"
    yield "|---|---|---:|---:|---:|---:|---|"
    for block in view.robustness:
        warning = f"; {block.warning}" if block.warning else ""
        for row in block.rows:
            cells = [
                f"{block.name} ({block.changed}{warning})",
                row.metric,
                row.change,
                row.reason or row.interval,
                f"{row.clean} → {row.perturbed}",
                row.baseline,
                row.worst,
            ]
            yield "| " + " | ".join(escape(cell) for cell in cells) + " |"


def _dialogues(view: ReportView) -> Iterator[str]:
    if view.dialogues is None:
        return
    failed = [dialogue for dialogue in view.dialogues.shown if dialogue.outcome == "failed"]
    if not failed:
        return
    yield ""
    yield "### Dialogues that failed"
    yield ""
    for dialogue in failed[:_MAX_DIALOGUES]:
        yield f"- {escape(dialogue.dialogue_id)}: {escape(dialogue.failing)} ({escape(dialogue.summary)})"
    total = dict(view.dialogues.counts).get("failed", 0)
    if total > _MAX_DIALOGUES:
        yield f"- … and {total - _MAX_DIALOGUES} more, see report.html"


def _code(text: str) -> str:
    """Content of a code span: digests and ids; whatever could end the span or be markup is replaced."""
    return re.sub(r"[^\w.:+-]", "?", visible(text))
