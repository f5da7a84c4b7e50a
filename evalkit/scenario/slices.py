"""Slices that rules and figures name: `resampled` is one that the scenario makes, all others are tags of its data."""

import difflib
from functools import cached_property
from pathlib import Path

from evalkit.gate.families import evidence_kinds
from evalkit.metrics.resampled import SLICE
from evalkit.scenario.asked import asked_by
from evalkit.scenario.dialogue_files import DialogueSource
from evalkit.scenario.schema import Policy, Scenario
from evalkit.scoring.texts import read_texts
from evalkit.yaml_source import YamlSource

_NEAR = 0.6  # of `difflib`, as for names of metrics
_NAMED = 8  # tags that an error lists where none is near


def check_slices(
    scenario: Scenario,
    source: YamlSource,
    policy: Policy | None,
    policy_source: YamlSource | None,
    text_data: Path | None,
    dialogues: tuple[DialogueSource, ...],
) -> None:
    """Refuse slices that hold no sample, since nothing could ever be decided by them.

    Args:
        scenario, source: the parsed file and its lines.
        policy, policy_source: its gate, and the file that holds it.
        text_data, dialogues: whose tags are slices.

    Raises:
        InputError: the first problem, with file, line and field.
    """
    resamples = scenario.text is not None and scenario.text.resample is not None
    tags = _Tags(text_data, dialogues)
    for asked in asked_by(scenario, source, policy, policy_source, "slice"):
        name, metric = asked.asks.slice, asked.metric
        if name == SLICE:
            if not resamples:
                raise asked.error(f"{SLICE!r}: the scenario re-weights no texts; add text.resample")
            if "text" not in evidence_kinds(metric):
                raise asked.error(f"{SLICE!r}: texts are re-weighted, and {metric} doesn't stand on texts")
            continue
        known = tags.under(metric)
        if name is not None and name not in known:
            raise asked.error(_unknown(name, metric, known, resamples))


class _Tags:
    """The tags of a scenario's data. Texts are read only where a rule asks for a slice of them."""

    def __init__(self, text_data: Path | None, dialogues: tuple[DialogueSource, ...]) -> None:
        self._text_data, self._dialogues = text_data, dialogues

    def under(self, metric: str) -> set[str]:
        """The tags of the samples that a metric stands on; decisions have none."""
        kinds = evidence_kinds(metric)
        return (self._of_texts if "text" in kinds else set()) | (
            self._of_dialogues if "turn" in kinds else set()
        )

    @cached_property
    def _of_texts(self) -> set[str]:
        texts = read_texts(self._text_data) if self._text_data is not None else ()
        return {tag for item in texts for tag in item.tags}

    @cached_property
    def _of_dialogues(self) -> set[str]:
        return {tag for item in self._dialogues for tag in item.dialogue.tags}


def _unknown(name: str, metric: str, known: set[str], resamples: bool) -> str:
    """What is wrong with a slice, and which ones there are."""
    kinds = evidence_kinds(metric)
    # What is near `resampled` is told so even where the scenario lacks the key for it.
    made = {SLICE} if "text" in kinds else set()
    names = sorted(known | made if resamples else known)
    near = difflib.get_close_matches(name, sorted(known | made), n=3, cutoff=_NEAR)
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    elif names:
        hint = f"there are: {', '.join(names[:_NAMED])}{' and others' if len(names) > _NAMED else ''}"
    else:
        hint = "decisions have no tags" if kinds == ("risk",) else "they have no tags at all"
    return f"{name!r}: no sample under {metric} has this tag ({hint})"
