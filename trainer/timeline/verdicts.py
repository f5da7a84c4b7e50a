"""Rules over facts: what holds becomes a finding, what can't be decided is listed with the fact it lacks."""

from dataclasses import dataclass
from typing import Literal

from trainer.findings import Evidence, Finding, Rival
from trainer.timeline.facts.subject import Subject
from trainer.timeline.rulebook import Rule, Rulebook, rulebook

State = Literal["holds", "fails", "unknown", "silenced"]


@dataclass(frozen=True)
class Undecided:
    """A rule that the trace can't answer, and the fact it would need."""

    rule: str
    subject: str
    lacks: str
    why: str

    def to_json(self) -> dict[str, str]:
        """The four fields."""
        return {"rule": self.rule, "subject": self.subject, "lacks": self.lacks, "why": self.why}


@dataclass(frozen=True)
class Verdicts:
    """Findings in the rules' order, and what couldn't be decided about the run."""

    findings: tuple[Finding, ...]
    undecided: tuple[Undecided, ...]


@dataclass(frozen=True)
class _Answer:
    state: State
    because: str
    lacks: str = ""


def judge(subjects: list[Subject], book: Rulebook | None = None) -> Verdicts:
    """Apply every rule to every subject of its scope."""
    book = book or rulebook()
    answers: dict[str, list[tuple[Subject, _Answer]]] = {}
    for rule in book.rules:
        silencer = next(
            (
                name
                for name in rule.unless
                if any(answer.state == "holds" for _, answer in answers.get(name, []))
            ),
            None,
        )
        for subject in subjects:
            if subject.scope == rule.scope:
                answer = _answer(rule, subject)
                if answer.state == "holds" and silencer is not None:
                    answer = _Answer("silenced", f"its conditions hold, but {silencer} comes first")
                answers.setdefault(rule.rule, []).append((subject, answer))
    findings, undecided = [], []
    for rule in book.rules:
        for subject, answer in answers.get(rule.rule, []):
            if answer.state == "holds":
                findings.append(_finding(rule, subject, answers))
            elif answer.state == "unknown" and subject.scope == "run":
                why = subject.facts[answer.lacks].where if answer.lacks in subject.facts else ""
                undecided.append(Undecided(rule.rule, subject.name, answer.lacks, why))
    return Verdicts(tuple(findings), tuple(undecided))


def _answer(rule: Rule, subject: Subject) -> _Answer:
    """A condition that fails settles it; else one whose fact is unknown leaves it open."""
    unknown = ""
    for condition in rule.when:
        value = subject.value(condition.fact)
        if value is None:
            unknown = unknown or condition.fact
        elif not condition.holds(value):
            return _Answer(
                "fails", f"{condition.fact} is {value:.4g}, not {condition.text().partition(' ')[2]}"
            )
    if unknown:
        return _Answer("unknown", f"{unknown} isn't known", unknown)
    return _Answer("holds", "; ".join(f"{c.fact} is {subject.value(c.fact):.4g}" for c in rule.when))


def _finding(rule: Rule, subject: Subject, answers: dict[str, list[tuple[Subject, _Answer]]]) -> Finding:
    values = {name: fact.value for name, fact in subject.facts.items() if fact.value is not None}
    evidence = []
    thresholds = {condition.fact: condition.text() for condition in rule.when}
    for name in dict.fromkeys((*thresholds, *rule.facts)):
        fact = subject.facts.get(name)
        where = fact.where if fact is not None else "not measured"
        if name in thresholds:
            where = f"{where}; threshold: {thresholds[name].partition(' ')[2]}".lstrip("; ")
        evidence.append(
            Evidence(
                name,
                None if fact is None or fact.value is None else round(fact.value, 6),
                fact.unit if fact is not None else "",
                where,
            )
        )
    evidence.append(Evidence("source", rule.source))
    return Finding(
        rule=rule.rule,
        severity=rule.severity,
        summary=rule.summary.format(subject=subject.name[:1].upper() + subject.name[1:], **values),
        evidence=tuple(evidence),
        rivals=tuple(_rival(rival.rule, rival.text, answers) for rival in rule.rivals),
        action=rule.action,
    )


def _rival(name: str, text: str, answers: dict[str, list[tuple[Subject, _Answer]]]) -> Rival:
    found = answers.get(name, [])
    holding = [(subject, answer) for subject, answer in found if answer.state == "holds"]
    if holding:
        return Rival(name, f"{text}: holds too ({holding[0][1].because})")
    silenced = [answer for _, answer in found if answer.state == "silenced"]
    if silenced:
        return Rival(name, f"{text}: {silenced[0].because}")
    failing = [answer for _, answer in found if answer.state == "fails"]
    if failing:
        return Rival(name, f"{text}: the numbers speak against it ({failing[0].because})")
    lacks = found[0][1].because if found else "the trace has nothing about it"
    return Rival(name, f"{text}: can't be decided ({lacks})")
