"""What `evalkit validate` does: say whether a scenario, dialogue, policy or flow file is sound."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from evalkit.errors import InputError
from evalkit.files import refuse_streams
from evalkit.gate.policy import load_policy, undecided
from evalkit.scenario.dialogue_files import DialogueSource, is_dialogue_file, read_dialogues
from evalkit.scenario.expectations import self_test
from evalkit.scenario.flow import FLOW_FILE, load_flow
from evalkit.scenario.loader import load_scenario
from evalkit.scenario.schema import Policy
from evalkit.yaml_source import YamlSource

Kind = Literal["scenario", "dialogue", "policy", "flow"]


@dataclass(frozen=True)
class Validation:
    """Outcome of a validation that found no error in the file itself.

    Attributes:
        kind: what the file is.
        digest: of the resolved scenario or flow; None for the others.
        dialogues: number of dialogues read.
        problems: what the self-test found, one line each.
        warnings: what is sound and yet hardly meant, one line each.
    """

    kind: Kind
    digest: str | None
    dialogues: int
    problems: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def validate(path: Path, *, run_self_test: bool) -> Validation:
    """Check a scenario, dialogue, policy or flow (file or folder).

    Args:
        path: the file, or a flow's folder.
        run_self_test: also play each dialogue with a gold, a null and an echo agent.

    Raises:
        InputError: the first problem, with file, line and field; or the file is none of the four.
    """
    kind = detect_kind(path)
    digest: str | None = None
    dialogues: tuple[DialogueSource, ...] = ()
    policy: Policy | None = None
    first_release = False
    if kind == "scenario":
        loaded = load_scenario(path)
        digest, dialogues, policy = loaded.digest, loaded.dialogues, loaded.policy
        first_release = loaded.scenario.first_release
    elif kind == "dialogue":
        dialogues = read_dialogues([path])
    elif kind == "flow":
        digest = load_flow(path if path.is_dir() else path.parent).digest
    else:
        policy = load_policy(path)
    if run_self_test and not dialogues:
        raise InputError(f"{path}: --self-test plays dialogues, and there are none; leave it out")
    idle = None if policy is None else undecided(policy, first_release=first_release)
    return Validation(
        kind,
        digest,
        len(dialogues),
        problems=tuple(self_test(dialogues)) if run_self_test else (),
        warnings=()
        if idle is None
        else (f"{path}: {idle[0]}: each verdict will be INCONCLUSIVE; {idle[1]} if it is to decide",),
    )


def detect_kind(path: Path) -> Kind:
    """What the file at `path` is, by its keys.

    Raises:
        InputError: it can't be read, or looks like none of the four.
    """
    if path.is_dir():
        return "flow"
    refuse_streams(path)
    content = YamlSource(path).value
    if is_dialogue_file(content):
        return "dialogue"
    if path.name == FLOW_FILE or "handover" in content or "satisfaction" in content:
        return "flow"
    if "version" in content or {"text", "risk", "dialogues", "gate"} & content.keys():
        return "scenario"
    if "rules" in content:
        return "policy"
    raise InputError(
        f"{path}: neither a scenario (version, name, ...), dialogue (id, turns), policy (rules) nor flow; "
        "check which file you meant"
    )
