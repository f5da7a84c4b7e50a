"""What a report says of re-weighted texts: how many they are worth, and how near they come to the target."""

from collections.abc import Mapping
from typing import Any

from evalkit.report import numbers
from evalkit.resampling.reweighting import SIGNIFICANCE


def resampling_notes(details: Mapping[str, Any]) -> list[str]:
    """Notes beside a re-weighted metric; empty for any other."""
    notes = []
    effective = details.get("effective_sample_size")
    if isinstance(effective, int | float):
        notes.append(f"effective sample size {effective:.0f} texts")
    uncovered = details.get("uncovered_mass")
    if isinstance(uncovered, int | float):
        notes.append(f"{numbers.number(uncovered, 'share')} of the target covered by no text")
    chance = details.get("shift_p_value")
    if isinstance(chance, int | float) and chance >= SIGNIFICANCE:
        notes.append("no difference from the target beyond chance: every text counts alike")
    before, after = details.get("marginal_before"), details.get("marginal_after")
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        notes += [
            f"distance to the target in {name} {before[name]:.2f} → {after[name]:.2f}"
            for name in before
            if name in after
        ]
    joint = [details.get("joint_before"), details.get("joint_after")]
    if all(isinstance(value, int | float) for value in joint):
        notes.append(f"joint {joint[0]:.2f} → {joint[1]:.2f}")
    return notes
