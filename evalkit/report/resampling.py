"""What a report says of re-weighted texts: how many they are worth, and how near they come to the target."""

from collections.abc import Iterable, Mapping
from typing import Any

from evalkit.metrics.resampled import SLICE
from evalkit.metrics.result import MetricResult
from evalkit.report import numbers
from evalkit.resampling.reweighting import SIGNIFICANCE

# The metric whose details hold what is known of the weights.
_MAIN = "perplexity/token"


def drift_notice(metrics: Iterable[MetricResult]) -> str | None:
    """How far recent traffic has moved away from the scenario's texts; None where the scenario names no traffic."""
    details = next((one.details for one in metrics if one.name == _MAIN and one.slice == SLICE), None)
    chance, texts = (details or {}).get("shift_p_value"), (details or {}).get("target_texts")
    before, uncovered = (details or {}).get("marginal_before"), (details or {}).get("uncovered_mass")
    if not isinstance(chance, int | float) or not isinstance(before, Mapping):
        return None
    traffic = f"the {texts} texts of recent traffic"
    if chance >= SIGNIFICANCE:
        return f"No drift beyond chance: the scenario's texts resemble {traffic} (p = {chance:.2g})."
    distances = ", ".join(f"{distance:.2f} in {name}" for name, distance in before.items())
    notice = (
        f"Drift: {traffic} differ from the scenario's texts (p = {chance:.2g}; total variation {distances})."
    )
    if isinstance(uncovered, int | float) and uncovered > 0:
        notice += f" {numbers.number(uncovered, 'share')} of them lie where the scenario has no text: add such texts."
    return notice


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
