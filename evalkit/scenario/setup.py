"""What the metrics need to know of the planned dialogues."""

from evalkit.metrics.context import DialogueSetup
from evalkit.scenario.dialogue_checks import may_not_block
from evalkit.scenario.loader import LoadedScenario
from evalkit.scenario.variation import different_trials, varies


def dialogue_setup(loaded: LoadedScenario) -> DialogueSetup | None:
    """The dialogues of a scenario as planned; None where it has none."""
    spec = loaded.scenario.dialogues
    if spec is None:
        return None
    dialogues = [item.dialogue for item in loaded.dialogues]
    different = {
        dialogue.id: different_trials(dialogue, spec.variation, spec.temperature, spec.trials)
        for dialogue in dialogues
    }
    unvaried = [
        dialogue.id for dialogue in dialogues if not varies(dialogue, spec.variation, spec.temperature)
    ]
    card = None if loaded.flow is None else loaded.flow.model_card("satisfaction")
    error = (card or {}).get("mean_absolute_error")  # a number, see `LoadedFlow.model_card`
    # A card that names no artefact vouches for none.
    data = (card or {}).get("data") if (card or {}).get("artefact_sha256") else None
    return DialogueSetup(
        dialogue_ids=tuple(dialogue.id for dialogue in dialogues),
        trials=spec.trials,
        varies=len(unvaried) < len(dialogues),
        population=spec.population,
        turns={dialogue.id: len(dialogue.turns) for dialogue in dialogues},
        first_token_ms=spec.budget_ms.first_token,
        turn_overhead_ms=spec.budget_ms.turn_overhead,
        unvaried=tuple(unvaried),
        repeated={name: number for name, number in different.items() if 1 < number < spec.trials},
        tags={dialogue.id: list(dialogue.tags) for dialogue in dialogues},
        satisfaction_error=None if error is None else float(error),
        satisfaction_data=data if isinstance(data, str) else None,
        costs=None if spec.costs is None else spec.costs.model_dump(),
        greedy=spec.temperature == 0,
        single_turn_probes=spec.single_turn_probes,
        model_users=tuple(dialogue.id for dialogue in dialogues if may_not_block(dialogue)),
    )
