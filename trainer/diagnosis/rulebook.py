"""What a rule says when it holds: severity, words, rivals, action and source stand in YAML, the test in code."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from pydantic import BaseModel, ConfigDict

from evalkit.yaml_source import load_yaml
from trainer.findings import Evidence, Finding, Rival, Severity

_FOLDER = Path(__file__).parent / "rules"


class Strict(BaseModel):
    """Base of everything that is read from the rule files."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RivalText(Strict):
    """Another explanation that a finding always names."""

    rule: str
    because: str


class RuleText(Strict):
    """The words of a rule. `summary` and `action` may hold {names} that the finding's evidence fills."""

    severity: Severity
    summary: str
    action: str
    source: str
    rivals: tuple[RivalText, ...] = ()


class RuleFile(Strict):
    """One file of rules."""

    rules: dict[str, RuleText]


@lru_cache(maxsize=8)
def rule_texts(name: str) -> dict[str, RuleText]:
    """The rules of rules/NAME.yaml by their names."""
    return load_yaml(_FOLDER / f"{name}.yaml", RuleFile).rules


def rules_path(name: str) -> Path:
    """Where rules/NAME.yaml lies."""
    return _FOLDER / f"{name}.yaml"


def make_finding(
    name: str,
    text: RuleText,
    evidence: Iterable[Evidence],
    *,
    severity: Severity | None = None,
    rivals: Iterable[Rival] = (),
    values: Mapping[str, object] = MappingProxyType({}),
) -> Finding:
    """A finding in the rule's words; `rivals` come before those that the rule always names.

    `values` fill the {names} of the texts beside the evidence.
    """
    items = tuple(evidence)
    filled = {item.name: "unknown" if item.value is None else item.value for item in items} | dict(values)
    named = tuple(rivals)
    always = tuple(
        Rival(rival.rule, rival.because)
        for rival in text.rivals
        if rival.rule not in {other.rule for other in named}
    )
    return Finding(
        name,
        severity or text.severity,
        text.summary.format(**filled),
        (*items, Evidence("source", text.source)),
        (*named, *always),
        text.action.format(**filled),
    )
