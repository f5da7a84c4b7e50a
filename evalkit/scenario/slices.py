"""Slices that rules and figures name: `resampled` is one that the scenario makes, all others are tags of its data."""

import difflib
from collections.abc import Iterator
from pathlib import Path

from evalkit.metrics.resampled import SLICE
from evalkit.scenario.dialogue_files import DialogueSource
from evalkit.scenario.schema import Policy, Scenario
from evalkit.scoring.texts import read_texts
from evalkit.yaml_source import FieldPath, YamlSource

_NEAR = 0.75  # of `difflib`: one or two letters


def check_slices(
    scenario: Scenario,
    source: YamlSource,
    policy: Policy | None,
    policy_path: Path | None,
    text_data: Path | None,
    dialogues: tuple[DialogueSource, ...],
) -> None:
    """Refuse the slice `resampled` where nothing is re-weighted, and misspellings of it that no tag explains.

    Args:
        scenario, source: the parsed file and its lines.
        policy, policy_path: its gate, and the file that holds it.
        text_data, dialogues: whose tags are slices too.

    Raises:
        InputError: the first problem, with file, line and field.
    """
    resamples = scenario.text is not None and scenario.text.resample is not None
    tags: set[str] | None = None
    for file, at, name in _named(scenario, source, policy, policy_path):
        if name == SLICE and not resamples:
            raise file.error(at, f"{SLICE!r}: the scenario re-weights no texts; add text.resample")
        if name == SLICE or not difflib.get_close_matches(name, [SLICE], cutoff=_NEAR):
            continue
        if tags is None:
            tags = {tag for item in dialogues for tag in item.dialogue.tags}
            tags |= {
                tag for item in (read_texts(text_data) if text_data is not None else ()) for tag in item.tags
            }
        if name not in tags:
            raise file.error(at, f"{name!r}: no text or dialogue has this tag; did you mean {SLICE}?")


def _named(
    scenario: Scenario, source: YamlSource, policy: Policy | None, policy_path: Path | None
) -> Iterator[tuple[YamlSource, FieldPath, str]]:
    """File, field and name of every slice."""
    for index, figure in enumerate(scenario.business):
        if figure.slice is not None:
            yield source, ("business", index, "slice"), figure.slice
    own = policy_path is None or policy_path == source.path
    where: FieldPath = ("gate", "rules") if own else ("rules",)
    rules = () if policy is None else policy.rules
    for index, rule in enumerate(rules):
        if rule.slice is not None:
            file = source if own or policy_path is None else YamlSource(policy_path)
            yield file, (*where, index, "slice"), rule.slice
