"""What a policy demands of the scenario that it is used with, wherever it is written: everything that could decide nothing, or
mustn't decide, is refused."""

from collections.abc import Sequence
from pathlib import Path

from evalkit.errors import InputError
from evalkit.metrics.own import OwnMetric
from evalkit.scenario.dialogue_files import DialogueSource
from evalkit.scenario.schema import Policy, Scenario
from evalkit.scenario.slices import check_slices
from evalkit.scenario.trials import check_k
from evalkit.scenario.user_schema import ModelUser
from evalkit.yaml_source import YamlSource

_ON_DIALOGUES = ("dialogue/", "latency/", "cache/", "business/")


def check_demands(
    scenario: Scenario,
    source: YamlSource,
    policy: Policy | None,
    policy_path: Path | None,
    text_data: Path | None,
    dialogues: tuple[DialogueSource, ...],
    own: Sequence[OwnMetric],
) -> None:
    """Check a policy against a scenario.

    Args:
        scenario, source: the parsed file and its lines.
        policy, policy_path: the policy, and the file that holds it.
        text_data, dialogues: of the scenario.
        own: metrics of the user.

    Raises:
        InputError: the first problem, with file and line.
    """
    check_slices(scenario, source, policy, policy_path, text_data, dialogues)
    check_k(scenario, source, policy, policy_path, dialogues)
    on_turns = {metric.name for metric in own if metric.evidence == "turn"}
    # What a model says in the user's place isn't ours to vouch for: by default it decides no release.
    blocking = [
        rule.metric
        for rule in (() if policy is None else policy.rules)
        if rule.severity == "block" and (rule.metric.startswith(_ON_DIALOGUES) or rule.metric in on_turns)
    ]
    for item in dialogues if blocking else ():
        user = item.dialogue.user
        if isinstance(user, ModelUser) and not user.may_block:
            raise InputError(
                f"{item.path}:{item.line}: {item.dialogue.id}: a model plays the user, and the blocking rule on "
                f"{blocking[0]} of {policy_path or source.path} would stand on it; give the rule severity: warn, or the user "
                "may_block: true"
            )
