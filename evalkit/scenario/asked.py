"""What the rules and figures of a scenario ask of its data, and where: a policy may stand in a file of its own."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from evalkit.errors import InputError
from evalkit.gate.policy import policy_field
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
    policy_source: YamlSource | None,
    field: Literal["slice", "k"],
) -> Iterator[Asked]:
    """Every rule and figure that has `field`.

    Args:
        scenario, source: the parsed file and its lines.
        policy, policy_source: its gate, and the file that holds it.
        field: in question.
    """
    for index, figure in enumerate(scenario.business):
        if getattr(figure, field) is not None:
            yield Asked(figure, figure.source, source, ("business", index, field))
    if policy is None or policy_source is None:
        return
    for index, rule in enumerate(policy.rules):
        if getattr(rule, field) is not None:
            at = (*policy_field(policy_source), "rules", index, field)
            yield Asked(rule, rule.metric, policy_source, at)
