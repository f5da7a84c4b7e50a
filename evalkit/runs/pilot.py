"""A pilot run for `evalkit power`, and what of it doesn't hold for the scenario that is planned."""

from collections.abc import Iterator
from typing import Any

from evalkit.errors import InputError
from evalkit.gate.power import Pilot
from evalkit.metrics.context import MetricContext
from evalkit.runs.derive import derive
from evalkit.runs.folder import RunFolder
from evalkit.runs.plan import context_from_plan, read_plan
from evalkit.runs.setup import data_digests, word_rule
from evalkit.runs.verify import check_sealed
from evalkit.scenario.loader import LoadedScenario
from evalkit.scenario.schema import Classes, Policy, Window
from evalkit.scenario.signatures import scenario_signatures
from evalkit.scoring.windows import parse_window

_SAMPLES = {
    "text": "texts",
    "resample": "traffic to re-weight to",
    "risk": "decisions",
    "dialogues": "dialogues",
}


def read_pilot(folder: RunFolder, loaded: LoadedScenario, policy: Policy) -> tuple[Pilot, list[str]]:
    """A pilot under a policy, and what whoever plans should know of it, one line each.

    Args:
        folder: a finished run, of the scenario or one like it.
        loaded: the scenario that is planned.
        policy: to be planned for.

    Raises:
        InputError: the run isn't finished, isn't as it was sealed, or is damaged.
    """
    plan = read_plan(folder)
    check_sealed(folder)
    derived, name = derive(folder, policy), f"run {folder.path.name}"
    try:
        data = data_digests(loaded)
        unlike, other = _unlike(plan, loaded, policy, data), list(_other_samples(plan, loaded, data))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{folder.plan}: {error!r:.100}; the file is damaged or of another version"
        ) from None
    return Pilot(name, derived.results, derived.comparison, unlike), [f"{name} {says}" for says in other]


def _other_samples(plan: dict[str, Any], loaded: LoadedScenario, data: dict[str, Any]) -> Iterator[str]:
    """In what the pilot's samples aren't the scenario's."""
    ours, theirs = _samples(data), _samples(plan.get("data", {}))
    nouns = " and ".join(
        noun
        for kind, noun in _SAMPLES.items()
        if kind in ours and kind in theirs and ours[kind] != theirs[kind]
    )
    if nouns:
        yield f"was measured on other {nouns} than the scenario's: its values and spreads hold as far as they are alike"
    talks, played = loaded.scenario.dialogues, plan["scenario"].get("dialogues")
    if talks is not None and played is not None and talks.trials != played["trials"]:
        yield (
            f"has trials: {played['trials']}, the scenario {talks.trials}: the more trials, the less dialogues differ"
        )


def _samples(digests: dict[str, Any]) -> dict[str, Any]:
    """Digests of the data, those of dialogue files whatever they are called."""
    return {
        kind: sorted(digest.values()) if kind == "dialogues" else digest for kind, digest in digests.items()
    }


def _unlike(
    plan: dict[str, Any], loaded: LoadedScenario, policy: Policy, data: dict[str, Any]
) -> dict[str, str]:
    """Why numbers of the pilot don't hold for the scenario, by metric: they were measured in another way."""
    context = context_from_plan(plan)
    theirs = context.signatures
    ours = _signatures(plan, loaded, context, data)
    unlike = {}
    for metric in {rule.metric for rule in policy.rules}:
        family = loaded.additions.declared.spec(metric).family
        if family in ours and family in theirs and ours[family] != theirs[family]:
            unlike[metric] = f"it measured in another way: {theirs[family]}, here {ours[family]}"
    return unlike


def _signatures(
    plan: dict[str, Any], loaded: LoadedScenario, context: MetricContext, data: dict[str, Any]
) -> dict[str, str]:
    """Signatures that the pilot's model would give under the scenario."""
    theirs = context.signatures
    known = dict(part.partition(":")[::2] for part in theirs.get("text", theirs.get("risk", "")).split("|"))
    return scenario_signatures(
        loaded,
        window=_window(plan, loaded, known),
        precision=known.get("p", ""),
        classes_digest=known.get("c", "") if _same_classes(plan, loaded, context, data) else "another",
        tokenizer_sha256=known.get("t", ""),
        words=word_rule(loaded).name,
    )


def _window(plan: dict[str, Any], loaded: LoadedScenario, known: dict[str, str]) -> Window | None:
    asked = None if loaded.scenario.text is None else loaded.scenario.text.window
    if asked is not None:
        return asked
    candidate = plan["candidate"]
    longest = candidate.get("max_length") or candidate.get("model", {}).get("max_length")
    if longest is not None:
        return Window(length=longest, stride=longest)
    return None if known.get("w", "whole") == "whole" else parse_window(known["w"])


def _same_classes(
    plan: dict[str, Any], loaded: LoadedScenario, context: MetricContext, data: dict[str, Any]
) -> bool:
    """Whether the token classes are declared alike; counts of a bundle are the model's matter."""
    ours, theirs = loaded.scenario.text, plan["scenario"].get("text")
    if ours is None or theirs is None:
        return True
    others = plan.get("data", {})
    return (
        _declared(ours.classes) == _declared(Classes.model_validate(theirs["classes"]))
        and all(data.get(kind) == others.get(kind) for kind in ("counts", "glossary"))
        and tuple(setup for setup, _ in loaded.additions.classes) == context.classes
    )


def _declared(classes: Classes) -> tuple[str, dict[str, Any]]:
    """Whose counts, and the settings: all but the files, which are compared by their digests."""
    counts = classes.counts if classes.counts in ("baseline", "candidate") else "of a file"
    return counts, classes.model_dump(exclude={"counts", "domain", "own"})
