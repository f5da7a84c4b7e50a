"""Whether the evidence of a model holds everything that was planned, and nothing else."""

from pathlib import Path

from evalkit.errors import InputError
from evalkit.runs.evidence import Evidence
from evalkit.runs.perturbed import perturbed_id
from evalkit.runs.setup import RunSetup


def check_whole(setup: RunSetup, evidence: Evidence, place: Path) -> None:
    """Every planned text, perturbed text, decision and turn has its one record, and there is no other.

    Raises:
        InputError: one is missing or too many; `place` is named.
    """
    spec = setup.loaded.scenario.dialogues
    planned: dict[str, set[object]] = {
        "text": {item.sample_id for item in setup.texts},
        "risk": {item.sample_id for item in setup.decisions},
        "perturbed": {
            perturbed_id(texts.setup.name, item.sample_id)
            for texts in setup.perturbed
            for item in texts.items
        },
        "turn": {
            (item.dialogue.id, trial, index)
            for item in setup.loaded.dialogues
            for trial in range(0 if spec is None else spec.trials)
            for index in range(len(item.dialogue.turns))
        },
    }
    recorded: dict[str, set[object]] = {
        **{
            kind: set(evidence.columns.of_kind(kind).strings("sample_id"))
            for kind in ("text", "risk", "perturbed")
        },
        "turn": {(turn.dialogue_id, turn.trial, turn.turn_index) for turn in evidence.turns},
    }
    for kind, wanted in planned.items():
        differing = wanted ^ recorded[kind]
        if differing:
            raise InputError(
                f"{place}: {len(differing)} records of kind {kind} are missing or too many (e.g. "
                f"{sorted(map(str, differing))[0]}); the evidence is damaged, start the run anew"
            )
