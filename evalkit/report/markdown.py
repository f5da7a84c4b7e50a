"""The Markdown report: short enough for a comment on a merge request."""

import re
from collections.abc import Iterator

from evalkit.report import numbers
from evalkit.report.language import ENGLISH, Language
from evalkit.report.rules import RuleView
from evalkit.report.text import visible
from evalkit.report.view import ReportView

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+\-.!|~>])")
_MAX_DIALOGUES = 10
_EMOJI = {"PASS": "✅", "FAIL": "❌", "INCONCLUSIVE": "❔", "NOT_APPLIED": "➖"}


def render_markdown(view: ReportView, say: Language = ENGLISH) -> str:
    """Verdict, rules, headline figures, the dialogues that failed, and what was scored."""
    return "\n".join(_lines(view, say)).rstrip() + "\n"


def escape(text: str) -> str:
    """`text` as literal Markdown in one line: no markup, no HTML, no mention of anybody."""
    line = " ".join(visible(text).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace("@", "&#64;")
    return _SPECIAL.sub(r"\\\1", line)


def _lines(view: ReportView, say: Language) -> Iterator[str]:
    verdict = view.verdict
    yield f"## {_EMOJI.get(verdict.word, '➖')} {say(verdict.word)}: {escape(view.title)}"
    yield ""
    yield escape(say(verdict.meaning))
    if verdict.reason:
        yield ""
        yield f"**{escape(say(verdict.reason))}**"
    for model in view.models:
        yield ""
        yield f"{say(model.role.capitalize())}: {escape(model.name)} `{_code(numbers.short_digest(model.digest))}`"
    for notice in view.notices:
        yield ""
        yield f"> {escape(say(notice))}"
    yield from _rules(view, say)
    yield from _figures(view, say)
    yield from _robustness(view, say)
    yield from _dialogues(view, say)
    for sentence in view.promotions:
        yield ""
        yield f"{say('Promotion')}: {escape(say(sentence))}"
    for side, sentence in view.conserved:
        yield ""
        yield f"{say(side)}: {escape(say(sentence))}"
    if verdict.warning:
        yield ""
        yield f"> {escape(say(verdict.warning))}"
    if verdict.false_fail:
        yield ""
        yield f"{escape(say(verdict.false_fail))}"
    yield ""
    policy = f" · {say('policy')} `{verdict.policy_sha256[:12]}`" if verdict.policy_sha256 else ""
    yield f"{say('Run')} `{_code(view.run_id)}`{policy}"


def _rules(view: ReportView, say: Language) -> Iterator[str]:
    if not view.rules:
        return
    yield ""
    yield f"### {say('Rules')}"
    yield ""
    yield _head(say, "", "rule", "demand", "value", "bounds", "n", "why, and what to do")
    yield "|---|---|---|---:|---:|---:|---|"
    for rule in view.rules:
        yield _rule(rule, say)


def _rule(rule: RuleView, say: Language) -> str:
    warn = f" ({say('warn')})" if rule.severity == "warn" else ""
    why = [say(rule.reason)]
    if rule.needs:
        why.append(say(f"needs n {rule.needs}"))
    if rule.action:
        why.append(say(rule.action))
    cells = [rule.name + warn, say(rule.demand), rule.value, rule.interval, rule.n, say("; ").join(why)]
    return f"| {_EMOJI[rule.outcome]} {say(rule.word)} | " + " | ".join(escape(cell) for cell in cells) + " |"


def _figures(view: ReportView, say: Language) -> Iterator[str]:
    if not view.figures:
        return
    yield ""
    yield f"### {say('Figures')}"
    yield ""
    yield _head(say, "figure", "candidate", "interval", "baseline", "change")
    yield "|---|---:|---:|---:|---:|"
    for figure in view.figures:
        change = f"{figure.change.value} ({say(figure.change.word)})" if figure.change else ""
        cells = [
            f"{say(figure.label)} ({figure.name})",
            figure.value,
            say(figure.interval),
            figure.baseline,
            change,
        ]
        yield "| " + " | ".join(escape(cell) for cell in cells) + " |"


def _robustness(view: ReportView, say: Language) -> Iterator[str]:
    if not view.robustness:
        return
    yield ""
    yield f"### {say('Robustness')}"
    yield ""
    yield say("Paired differences to the clean texts.")
    yield ""
    names = (
        "perturbation",
        "metric",
        "difference",
        "interval",
        "clean → perturbed",
        "baseline",
        "worst slice",
    )
    yield _head(say, *names)
    yield "|---|---|---:|---:|---:|---:|---|"
    for block in view.robustness:
        warning = f"; {say(block.warning)}" if block.warning else ""
        for row in block.rows:
            cells = [
                f"{block.name} ({say(block.changed)}{warning})",
                row.metric,
                row.change,
                say(row.reason) or row.interval,
                f"{row.clean} → {row.perturbed}",
                row.baseline,
                say(row.worst),
            ]
            yield "| " + " | ".join(escape(cell) for cell in cells) + " |"


def _dialogues(view: ReportView, say: Language) -> Iterator[str]:
    if view.dialogues is None:
        return
    failed = [dialogue for dialogue in view.dialogues.shown if dialogue.outcome == "failed"]
    if not failed:
        return
    yield ""
    yield f"### {say('Dialogues that failed')}"
    yield ""
    for dialogue in failed[:_MAX_DIALOGUES]:
        yield f"- {escape(dialogue.dialogue_id)}: {escape(say(dialogue.failing))} ({escape(say(dialogue.summary))})"
    total = dict(view.dialogues.counts).get("failed", 0)
    if total > _MAX_DIALOGUES:
        yield f"- {say(f'… and {total - _MAX_DIALOGUES} more, see report.html')}"


def _head(say: Language, *names: str) -> str:
    return "| " + " | ".join(say(name) for name in names) + " |"


def _code(text: str) -> str:
    """Content of a code span: digests and ids; whatever could end the span or be markup is replaced."""
    return re.sub(r"[^\w.:+-]", "?", visible(text))
