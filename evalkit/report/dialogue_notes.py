"""Small print under dialogue metrics: facts by distance, who is to blame, which dialogues are flaky."""

from collections.abc import Mapping, Sequence
from typing import Any

_MOST_NAMES = 5


def dialogue_notes(details: Mapping[str, Any]) -> list[str]:
    """What the details of a dialogue metric add to its value; nothing for other metrics."""
    notes = []
    for entry in details.get("by_distance") or ():
        if isinstance(entry, dict):
            notes.append(f"{entry.get('turns')} turns back: {entry.get('honoured')} of {entry.get('asked')}")
    if details.get("contradicted") or details.get("forgotten"):
        notes.append(f"{details.get('contradicted')} contradicted, {details.get('forgotten')} forgotten")
    blame = details.get("blame")
    if isinstance(blame, dict) and any(blame.values()):
        shares = ", ".join(f"{who} {count}" for who, count in blame.items() if count)
        notes.append(f"trials without success, by who is to blame: {shares}")
    notes += _names("flaky", details.get("flaky"))
    notes += _names("different replies to equal conversations", details.get("different"))
    return notes


def _names(what: str, names: object) -> list[str]:
    if not isinstance(names, Sequence) or isinstance(names, str) or not names:
        return []
    shown = ", ".join(str(name) for name in names[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return [f"{what}: {shown}{more}"]
