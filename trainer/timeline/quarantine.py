"""What a trace held that can't be trusted: counted by file and kind, with one example, in every report."""

from dataclasses import dataclass, field
from typing import Any

# kind → (what happened to the events, what it means)
KINDS: dict[str, tuple[str, str]] = {
    "malformed_event": ("dropped", "not a JSON object, or without a usable time stamp"),
    "repaired_text": ("kept", "control characters, NaN or bytes that aren't UTF-8, read tolerantly"),
    "broken_tail": ("dropped", "the file ends inside an event; everything before it was kept"),
    "malformed_header": ("dropped", "the keys beside the events aren't valid JSON"),
    "negative_duration": ("dropped", "an event that ends before it starts"),
    "zero_duration": ("kept", "a marker without length; it adds no time"),
    "overflow": ("dropped", "a time stamp beyond 146 years, or a duration many times longer than the trace"),
    "unmatched_begin": ("dropped", "a B event whose E never came"),
    "unmatched_end": ("dropped", "an E event without a B"),
    "crossed_end": ("kept", "an E event that closed another B than the most recent one, matched by its name"),
    "out_of_window": ("dropped", "a time stamp far from all others"),
    "duplicate": ("dropped", "the same event in two files"),
    "overlap_on_track": (
        "cut",
        "a task of a device stream that was still running when the next one began; it ends there",
    ),
    "child_after_parent": ("kept", "a nested event that ends after the event around it"),
    "device_before_launch": ("kept", "a device task that starts before its launch on the host"),
    "launch_without_kernel": ("kept", "a launch on the host whose device task isn't in the trace"),
    "ratio_above_one": ("unknown", "a utilisation above 1, which can't be measured time"),
    "malformed_row": ("dropped", "a table row whose numbers can't be read"),
    "rank_beyond_limit": ("unknown", "a rank or a number of ranks above 65536, taken as not told"),
    "unreadable_file": ("dropped", "a file that could not be read as what it looks like"),
    "unreadable_folder": ("dropped", "a folder that could not be listed, or a link that was not followed"),
    "not_a_timeline": ("dropped", "a file without any timed event or table this tool knows"),
    "other_recording": ("dropped", "a trace of another time than the rest of the folder"),
}


@dataclass
class _Entry:
    count: int = 0
    example: str = ""


@dataclass
class Quarantine:
    """Counts of questionable events by (file, kind)."""

    _entries: dict[tuple[str, str], _Entry] = field(default_factory=dict)

    def add(self, file: str, kind: str, example: str = "", count: int = 1) -> None:
        """Count `count` events of a kind; the first example that isn't empty is kept."""
        if kind not in KINDS:
            raise KeyError(kind)
        if count == 0:
            return
        entry = self._entries.setdefault((file, kind), _Entry())
        entry.count += count
        if not entry.example:
            entry.example = example[:200]

    def count(self, kind: str, file: str | None = None) -> int:
        """How many events of a kind, over all files or in one."""
        return sum(
            entry.count
            for (name, of_kind), entry in self._entries.items()
            if of_kind == kind and file in (None, name)
        )

    def lines(self, most: int = 8) -> list[str]:
        """The table for a terminal: what was not kept, the largest counts first; of the rest the number of rows."""
        rows = self.rows()
        lost = sorted((row for row in rows if row["treatment"] != "kept"), key=lambda row: -row["count"])
        shown = [
            f"{row['file']}: {row['kind']}, {row['count']} {row['treatment']}: {row['example'] or row['meaning']}"
            for row in lost[:most]
        ]
        more = len(rows) - len(shown)
        return shown + ([f"{more} more rows stand in the report"] if more and shown else [])

    def rows(self) -> list[dict[str, Any]]:
        """The table, sorted by file and kind."""
        return [
            {
                "file": file,
                "kind": kind,
                "count": entry.count,
                "treatment": KINDS[kind][0],
                "meaning": KINDS[kind][1],
                "example": entry.example,
            }
            for (file, kind), entry in sorted(self._entries.items())
        ]
