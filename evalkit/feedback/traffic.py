"""`evalkit ingest traffic`: production conversations → a resampling target and candidate dialogues, masked."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from evalkit.canonical import sha256_file, sha256_text
from evalkit.errors import InputError
from evalkit.feedback.conversations import Conversation, Message, read_log
from evalkit.feedback.mapping import TrafficMap
from evalkit.feedback.masking import Masker, MaskRules
from evalkit.files import folder_atomic, read_text, refuse_streams, write_bytes_atomic, write_json_atomic
from evalkit.scenario.dialogue_files import read_dialogue_file
from evalkit.scenario.expectations import states
from evalkit.scenario.importers.convert import dump_dialogues
from evalkit.scenario.importers.drafts import has_braces
from evalkit.scenario.patterns import BrokenPatternError, Pattern, SlowPatternError
from evalkit.yaml_source import YamlSource

TARGET, CHECKED, TO_COMPLETE, ACCOUNT = (
    "target.jsonl",
    "dialogues.yaml",
    "dialogues_to_complete.yaml",
    "ingest.json",
)
_SCHEMA = "evalkit.ingest/1"


@dataclass(frozen=True)
class Ingested:
    """The account of one ingest; it holds no personal data.

    Attributes:
        source_sha256: of the log.
        conversations: in the log.
        counts: messages read and left out, by reason.
        texts: in the resampling target.
        masked: personal data in the messages, by kind.
        first, last: times of the messages; None where the log has none.
        handed_over: conversations that a colleague took over.
        dialogues: candidates with an expectation; to_complete: those without one.
        left_out: conversations that make no dialogue, by reason.
    """

    source_sha256: str
    conversations: int
    counts: dict[str, int]
    texts: int
    masked: dict[str, int]
    first: str | None
    last: str | None
    handed_over: int
    dialogues: int
    to_complete: int
    left_out: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {"schema": _SCHEMA, **self.__dict__}


@dataclass
class _Collected:
    texts: list[dict[str, str]] = field(default_factory=list)
    checked: list[dict[str, Any]] = field(default_factory=list)
    to_complete: list[dict[str, Any]] = field(default_factory=list)
    masked: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)


def ingest_traffic(path: Path, map_path: Path, out: Path) -> Ingested:
    """Write `out`/target.jsonl, dialogues.yaml, dialogues_to_complete.yaml (where there are any) and ingest.json.

    Args:
        path: the log, JSON lines or CSV.
        map_path: the mapping file.
        out: folder to create.

    Raises:
        InputError: file and line of the first problem of the log or the mapping.
    """
    refuse_streams(path)  # its digest is taken in a reading of its own
    source = YamlSource(map_path)
    spec = source.parse(TrafficMap)
    rules = _rules(spec, source)
    log = read_log(path, spec)
    found = _Collected()
    # The order of digests is as good as chance, and the same for every ingest of one log.
    order = sorted(log.conversations.values(), key=lambda one: sha256_text(f"{spec.seed}:{one.key}"))
    # Numbers in place of the log's ids, which may be personal: the hash of a short id can be guessed.
    for number, conversation in enumerate(order):
        masker = Masker(rules)
        _add_texts(conversation, number, spec, masker, found)
        if len(found.checked) + len(found.to_complete) < spec.dialogues:
            _add_dialogue(conversation, number, masker, found)
        else:
            found.left_out["beyond `dialogues` of the mapping"] += 1
        found.masked.update(place.kind for one in conversation.messages for place in rules.find(one.text))
    if not found.texts:
        raise InputError(f"{path}: no message of role {spec.target} is left; check the mapping's roles")
    times = [message.time for one in order for message in one.messages if message.time is not None]
    account = Ingested(
        source_sha256=sha256_file(path),
        conversations=len(log.conversations),
        counts=dict(log.counts),
        texts=len(found.texts),
        masked=dict(sorted(found.masked.items())),
        first=_shown(min(times, default=None)),
        last=_shown(max(times, default=None)),
        handed_over=sum(any(message.role == "human" for message in one.messages) for one in order),
        dialogues=len(found.checked),
        to_complete=len(found.to_complete),
        left_out=dict(sorted(found.left_out.items())),
    )
    with folder_atomic(out) as folder:
        _write(folder, found, account)
    return account


def _rules(spec: TrafficMap, source: YamlSource) -> MaskRules:
    names: list[str] = []
    if spec.mask.names is not None:
        file = source.path.parent / spec.mask.names
        if not file.is_file():
            raise source.error(("mask", "names"), f"{file}: no such file; correct the path")
        names = [line.strip() for line in read_text(file).splitlines() if line.strip()]
    patterns = {}
    for kind, pattern in spec.mask.patterns.items():
        try:
            patterns[kind] = Pattern(pattern)
            patterns[kind].check_speed()
        except BrokenPatternError as error:
            raise source.error(("mask", "patterns", kind), f"broken regular expression: {error}") from None
        except SlowPatternError as error:
            raise source.error(("mask", "patterns", kind), str(error)) from None
        if patterns[kind].find("") is not None:
            raise source.error(
                ("mask", "patterns", kind), "matches an empty text; write what the personal data looks like"
            )
    return MaskRules(names, patterns)


def _add_texts(
    conversation: Conversation, number: int, spec: TrafficMap, masker: Masker, found: _Collected
) -> None:
    cluster = f"c{number:06}"
    for index, message in enumerate(conversation.messages):
        if message.role == spec.target:
            text = masker.plain(message.text)
            found.texts.append({"id": f"{cluster}-{index}", "text": text, "cluster": cluster})


def _add_dialogue(conversation: Conversation, number: int, masker: Masker, found: _Collected) -> None:
    """The conversation as a dialogue: facts for what was masked, recall probes where the reply repeated it."""
    if has_braces(*(message.text for message in conversation.messages)):
        found.left_out["a text holds {...}, which a dialogue file reads as a fact"] += 1
        return
    pairs = list(_pairs(conversation.messages))
    if not pairs:
        found.left_out["no message of the user with an answer"] += 1
        return
    turns: list[dict[str, Any]] = []
    stated: set[str] = set()
    derived = False
    for said, answer in pairs:
        user, reply = masker.template(said), masker.template(answer.text)
        stated |= _facts_in(user)
        turn: dict[str, Any] = {"user": user, "gold": reply}
        if answer.role == "human":
            turn["expect"] = {"handover": {"required": True}}
        else:
            recalls = sorted(_facts_in(reply) & stated)
            recalls = [
                fact
                for fact in recalls
                if states(masker.plain(answer.text), masker.stand_ins[fact], whole_words=True)
            ]
            turn |= {"expect": {"recalls": recalls}} if recalls else {}
        derived = derived or "expect" in turn
        turns.append(turn)
    used = set().union(*(_facts_in(turn["user"]) | _facts_in(turn["gold"]) for turn in turns))
    content = {
        "id": f"traffic_{number:06}",
        "locale": conversation.locale,
        "facts": {fact: value for fact, value in masker.stand_ins.items() if fact in used},
        "tags": ["traffic"],
        "turns": turns,
    }
    (found.checked if derived else found.to_complete).append(content)


def _pairs(messages: list[Message]) -> Iterator[tuple[str, Message]]:
    """What the user said before each answer, up to and including the first answer of a colleague."""
    said: list[str] = []
    for message in messages:
        if message.role == "user":
            said.append(message.text)
        elif said:
            yield " ".join(said), message
            said = []
            if message.role == "human":
                return


def _facts_in(template: str) -> set[str]:
    return set(re.findall(r"\{([A-Za-z_][A-Za-z0-9_]*)\}", template))


def _write(folder: Path, found: _Collected, account: Ingested) -> None:
    lines = "".join(json.dumps(text, ensure_ascii=False) + "\n" for text in found.texts)
    write_bytes_atomic(folder / TARGET, lines.encode())
    for name, dialogues in ((CHECKED, found.checked), (TO_COMPLETE, found.to_complete)):
        if dialogues:
            write_bytes_atomic(folder / name, dump_dialogues(dialogues).encode())
            read_dialogue_file(folder / name)
    write_json_atomic(folder / ACCOUNT, account.to_dict())


def _shown(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()
