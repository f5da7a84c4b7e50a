"""Rules and figures on dialogue/pass_hat_k: whether any dialogue can have k independent trials."""

from collections.abc import Sequence

from evalkit.scenario.asked import asked_by
from evalkit.scenario.dialogue_files import DialogueSource
from evalkit.scenario.schema import Policy, Scenario
from evalkit.scenario.variation import different_trials
from evalkit.yaml_source import YamlSource


def check_k(
    scenario: Scenario,
    source: YamlSource,
    policy: Policy | None,
    policy_source: YamlSource | None,
    dialogues: Sequence[DialogueSource],
) -> None:
    """Refuse a k that no dialogue has so many independent trials for, since nothing could ever be decided by it.

    Args:
        scenario, source: the parsed file and its lines.
        policy, policy_source: its gate, and the file that holds it.
        dialogues: of the scenario.

    Raises:
        InputError: the first problem, with file, line and field.
    """
    plan = scenario.dialogues
    if plan is None:
        return
    for asked in asked_by(scenario, source, policy, policy_source, "k"):
        k, name = asked.asks.k, asked.asks.slice
        needs = f"{asked.metric} with k = {k} needs {k} trials of a dialogue"
        if k is not None and k > plan.trials:
            raise asked.error(
                f"{needs}, the scenario plays {plan.trials} (dialogues.trials): it could never be decided; raise trials, or "
                "lower k"
            )
        own = (item.dialogue for item in dialogues if name is None or name in item.dialogue.tags)
        different = max(
            (different_trials(one, plan.variation, plan.temperature, plan.trials) for one in own), default=1
        )
        if k is not None and k > different:
            raise asked.error(
                f"{needs}, and of the {plan.trials} that the scenario plays {different} at most differ: copies count as one, it "
                "could never be decided; add paraphrases or dialogues.variation, or lower k"
            )
