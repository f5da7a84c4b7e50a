"""What the rules and figures of a scenario ask of its data, and where: a policy may stand in a file of its own."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from evalkit.errors import InputError
from evalkit.scenario.additions_schema import Business
from evalkit.scenario.schema import Policy, Rule, Scenario
from evalkit.yaml_source import FieldPath, YamlSource


@dataclass(frozen=True)
class Asked:
    """A rule or figure that has a field.

    Attributes:
        asks: the rule or the figure.
        metric: that it stands on.
        file, at: where the field is written.
    """

    asks: Rule | Business
    metric: str
    file: YamlSource
    at: FieldPath

    def error(self, message: str) -> InputError:
        """An error that names file, line and field."""
        return self.file.error(self.at, message)


def asked_by(
    scenario: Scenario,
    source: YamlSource,
    policy: Policy | None,
    policy_path: Path | None,
    field: Literal["slice", "k"],
) -> Iterator[Asked]:
    """Every rule and figure that has `field`.

    Args:
        scenario, source: the parsed file and its lines.
        policy, policy_path: its gate, and the file that holds it.
        field: in question.
    """
    for index, figure in enumerate(scenario.business):
        if getattr(figure, field) is not None:
            yield Asked(figure, figure.source, source, ("business", index, field))
    rules = (
        []
        if policy is None
        else [one for one in enumerate(policy.rules) if getattr(one[1], field) is not None]
    )
    if rules:
        own = policy_path is None or policy_path == source.path
        file = source if own or policy_path is None else YamlSource(policy_path)
        # The gate of a scenario, this one or another, or a policy alone.
        where: FieldPath = ("gate", "rules") if "gate" in file.value else ("rules",)
        for index, rule in rules:
            yield Asked(rule, rule.metric, file, (*where, index, field))
