"""What the dialogues of a scenario ask for against what the scenario has: a flow, its labels, who may decide a release."""

from collections.abc import Sequence
from pathlib import Path

from evalkit.errors import InputError
from evalkit.metrics.own import OwnMetric
from evalkit.scenario.dialogue import Dialogue
from evalkit.scenario.dialogue_files import DialogueSource
from evalkit.scenario.flow import unknown_label
from evalkit.scenario.schema import Policy
from evalkit.scenario.user_schema import ModelUser


def refuse_flow_expectations(dialogues: tuple[DialogueSource, ...], scenario_path: Path) -> None:
    """A scenario without a flow recognises no intent and hands nobody over."""
    for item in dialogues:
        for index, turn in enumerate(item.dialogue.turns):
            wanted = turn.expect
            if wanted.intent is not None or (wanted.handover is not None and wanted.handover.required):
                raise InputError(
                    f"{item.path}:{item.line}: {item.dialogue.id}: turn {index + 1} expects an intent or a "
                    f"hand-over, but {scenario_path} names no flow; add `flow:` to the scenario"
                )


def refuse_blocking_on_model_users(
    dialogues: tuple[DialogueSource, ...], own: Sequence[OwnMetric], policy: Policy, policy_path: Path
) -> None:
    """What a model says in the user's place isn't ours to vouch for: by default it decides no release."""
    metric = blocking_on_turns(policy, own)
    for item in dialogues:
        if metric is not None and may_not_block(item.dialogue):
            raise InputError(
                f"{item.path}:{item.line}: {item.dialogue.id}: a model plays the user, and the blocking rule on "
                f"{metric} of {policy_path} would stand on it; give the rule severity: warn, or the user "
                "may_block: true"
            )


def may_not_block(dialogue: Dialogue) -> bool:
    """Whether a model plays the user, and nobody vouches for it."""
    return isinstance(dialogue.user, ModelUser) and not dialogue.user.may_block


def blocking_on_turns(policy: Policy, own: Sequence[OwnMetric]) -> str | None:
    """The metric of the first blocking rule that may stand on dialogues, or None.

    Args:
        policy: the rules.
        own: metrics of the scenario's own.
    """
    of_turns = {metric.name for metric in own if metric.evidence == "turn"}
    prefixes = ("dialogue/", "latency/", "cache/", "business/")
    blocking = (rule.metric for rule in policy.rules if rule.severity == "block")
    return next((name for name in blocking if name.startswith(prefixes) or name in of_turns), None)


def refuse_unknown_labels(dialogues: tuple[DialogueSource, ...], labels: frozenset[str] | None) -> None:
    """An expectation of an intent that the flow never gives would fail whatever the model says."""
    if labels is None:
        return
    for item in dialogues:
        for index, turn in enumerate(item.dialogue.turns):
            if turn.expect.intent is not None and turn.expect.intent not in labels:
                raise InputError(
                    f"{item.path}:{item.line}: {item.dialogue.id}: turns.{index}.expect.intent: "
                    f"{unknown_label(turn.expect.intent, labels)}"
                )
