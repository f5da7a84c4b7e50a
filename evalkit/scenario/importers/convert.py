"""`evalkit import`: read a foreign format, check each dialogue, write dialogue files and an account of the rest."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from evalkit.errors import InputError
from evalkit.files import folder_atomic, refuse_streams, write_bytes_atomic, write_json_atomic
from evalkit.scenario.dialogue import Dialogue
from evalkit.scenario.dialogue_files import DialogueSource, read_dialogue_file
from evalkit.scenario.expectations import self_test
from evalkit.scenario.importers.crosswoz import read_crosswoz
from evalkit.scenario.importers.drafts import Draft, Reader, Skipped, Unchecked, first_problem
from evalkit.scenario.importers.rasa import read_rasa
from evalkit.scenario.importers.sgd import read_sgd
from evalkit.scenario.importers.tau2 import read_tau2

READERS: Mapping[str, Reader] = {
    "sgd": read_sgd,
    "crosswoz": read_crosswoz,
    "rasa": read_rasa,
    "tau2": read_tau2,
}
ACCOUNT = "import.json"
_PER_FILE = 100
_SCHEMA = "evalkit.import/1"
_NOTHING_TO_CHECK = "nothing to check: no statement of the source can be tested in a reply's text"


@dataclass(frozen=True)
class Imported:
    """The account of one import; converted + skipped = found.

    Attributes:
        kind: the format.
        found: dialogues in the source.
        converted: ids of the dialogues written.
        skipped: where and why, of the others.
        unchecked: expectations of the source that no dialogue file states, by kind.
        weak: ids of the dialogues that an agent passes which only echoes the user.
        files: names of the dialogue files.
    """

    kind: str
    found: int
    converted: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    unchecked: dict[str, int]
    weak: tuple[str, ...]
    files: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "schema": _SCHEMA,
            "kind": self.kind,
            "found": self.found,
            "converted": list(self.converted),
            "skipped": [{"source": item.source, "reason": item.reason} for item in self.skipped],
            "unchecked": self.unchecked,
            "weak": list(self.weak),
            "files": list(self.files),
        }

    def reasons(self) -> dict[str, int]:
        """How many dialogues were skipped for each reason."""
        counts: dict[str, int] = {}
        for item in self.skipped:
            counts[item.reason] = counts.get(item.reason, 0) + 1
        return dict(sorted(counts.items(), key=lambda entry: -entry[1]))


def import_dialogues(kind: str, source: Path, out: Path) -> Imported:
    """Convert `source` into the new folder `out`: dialogue files and `import.json`.

    Args:
        kind: key of `READERS`.
        source: file or folder of that format.
        out: folder to create.

    Raises:
        InputError: the source can't be read, none of its dialogues could be converted, or `out` exists.
    """
    refuse_streams(source)
    if not source.exists():
        raise InputError(f"{source}: no such file or folder; check the path")
    unchecked = Unchecked()
    kept: list[tuple[Draft, Dialogue]] = []
    skipped: list[Skipped] = []
    weak: list[str] = []
    taken: set[str] = set()
    for item in READERS[kind](source):
        checked = item.reason if isinstance(item, Skipped) else _checked(item, taken)
        if isinstance(item, Skipped) or isinstance(checked, str):
            skipped.append(Skipped(_writable(item.source), _writable(str(checked))))
            continue
        dialogue, echo_passes = checked
        kept.append((item, dialogue))
        taken.add(dialogue.id)
        unchecked.update(item.unchecked)
        weak += [dialogue.id] if echo_passes else []
    if not kept:
        first = f"; the first: {skipped[0].source}: {skipped[0].reason}" if skipped else ""
        raise InputError(f"{source}: no dialogue could be converted ({len(skipped)} found{first})")
    with folder_atomic(out) as folder:
        files = _write(folder, kind, kept)
        found = Imported(
            kind=kind,
            found=len(kept) + len(skipped),
            converted=tuple(dialogue.id for _, dialogue in kept),
            skipped=tuple(skipped),
            unchecked={_writable(what): count for what, count in sorted(unchecked.items()) if count},
            weak=tuple(weak),
            files=tuple(files),
        )
        write_json_atomic(folder / ACCOUNT, found.to_dict())
    return found


def _checked(draft: Draft, taken: set[str]) -> tuple[Dialogue, bool] | str:
    """The dialogue and whether an echo passes it, or why it can't be taken."""
    content = json.dumps(draft.content, ensure_ascii=False)
    if _writable(content) != content:
        return "a text holds half a character (a lone surrogate); it can't be written as UTF-8"
    try:
        dialogue = Dialogue.model_validate(draft.content)
    except ValidationError as error:
        return first_problem(error)
    if dialogue.id in taken:
        return f"its id {dialogue.id!r} is used already"
    problems = self_test([DialogueSource(dialogue, Path(draft.source), 1)])
    for problem in problems:
        if "the gold agent fails" in problem:
            return f"the source's own reply fails: {problem.partition('the gold agent fails ')[2]}"
    if any("the null agent passes" in problem for problem in problems):
        return _NOTHING_TO_CHECK
    return dialogue, any("the echo agent passes" in problem for problem in problems)


def _writable(text: str) -> str:
    """`text` with what UTF-8 can't hold spelt out."""
    return text.encode("utf-8", "backslashreplace").decode()


def _write(folder: Path, kind: str, kept: list[tuple[Draft, Dialogue]]) -> list[str]:
    names = []
    for number, start in enumerate(range(0, len(kept), _PER_FILE)):
        part = kept[start : start + _PER_FILE]
        name = f"{kind}_{number:03}.yaml"
        write_bytes_atomic(folder / name, dump_dialogues([draft.content for draft, _ in part]).encode())
        # What was written is what a scenario will read: a difference would be a fault of ours.
        read = [item.dialogue for item in read_dialogue_file(folder / name)]
        if read != [dialogue for _, dialogue in part]:
            raise RuntimeError(f"{name}: reads back differently")
        names.append(name)
    return names


class _Dumper(yaml.CSafeDumper):
    """Equal objects are written out, and texts that look like numbers in any version of YAML are quoted."""

    def ignore_aliases(self, data: Any) -> bool:
        """Never an alias."""
        return True


def _text(dumper: yaml.CSafeDumper, text: str) -> yaml.Node:
    plain = re.fullmatch(r"[^\W\d_][^\n\r\t]*", text) is not None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _text)


def dump_dialogues(dialogues: list[dict[str, Any]]) -> str:
    """Dialogues as the text of a dialogue file."""
    text: str = yaml.dump(
        {"dialogues": dialogues}, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=110
    )
    return text
