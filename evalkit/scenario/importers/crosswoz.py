"""CrossWOZ (Chinese, five domains; thu-coai) → drafts.

A pair of messages becomes a turn, the system's words its gold reply. A value of the user's Inform acts that stands in
the user's words becomes a fact. Where the system later says it again, the model must recall it. What the system looks
up in its database can't be known by a model without it: it is counted, and only the form of an answer is expected (a
question for a price gets one). Values of one character (是) say too little to be facts.
"""

import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO

from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from evalkit.errors import InputError
from evalkit.scenario.expectations import states
from evalkit.scenario.importers.drafts import Draft, Facts, Skipped, Unchecked, has_braces, misfit, template

_NAMES = {
    "景点": "attraction", "餐馆": "restaurant", "酒店": "hotel", "地铁": "metro", "出租": "taxi",
    "名称": "name", "推荐菜": "dish", "人均消费": "cost", "评分": "rating", "周边景点": "near_attraction",
    "周边餐馆": "near_restaurant", "周边酒店": "near_hotel", "门票": "ticket", "游玩时间": "duration", "地址": "address",
    "电话": "phone", "营业时间": "hours", "酒店类型": "type", "酒店设施": "facility", "价格": "price", "出发地": "from",
    "目的地": "to", "车型": "car", "车牌": "plate",
}  # fmt: skip
# What an answer to a question for this slot looks like, whatever the database says.
_FORMS = {
    "电话": r"\d{7,}", "评分": r"\d\s*分", "门票": r"\d\s*元|免费", "价格": r"\d\s*元|免费", "人均消费": r"\d\s*元|免费",
    "游玩时间": r"\d\s*(?:小时|分钟|天)", "营业时间": r"\d\s*[:：点]",
}  # fmt: skip
_CHUNK = 1 << 16
_SHORTEST_FACT = 2

# Act, domain, slot, value.
_Act = Annotated[list[str], Field(min_length=4)]


class _Message(TypedDict):
    role: str
    content: str
    dialog_act: list[_Act]


class _Talk(TypedDict):
    messages: list[_Message]


_SHAPE = TypeAdapter(_Talk)


def read_crosswoz(source: Path) -> Iterator[Draft | Skipped]:
    """Read a split of the corpus: the JSON file, or the zip with that one file; streamed, dialogue by dialogue.

    Raises:
        InputError: a folder, a zip with other content, or broken JSON.
    """
    if source.is_dir():
        raise InputError(f"{source}: is a folder; name one split, e.g. val.json.zip")
    with _opened(source) as stream:
        for key, talk in _entries(stream, source):
            where = f"{source.name}: {key}"
            problem = misfit(_SHAPE, talk)
            if problem is None:
                yield _dialogue(key, talk, where)
            else:
                yield Skipped(where, f"isn't a CrossWOZ dialogue: {problem}")


@contextmanager
def _opened(source: Path) -> Iterator[TextIO]:
    if not zipfile.is_zipfile(source):
        with source.open(encoding="utf-8") as stream:
            yield stream
        return
    with zipfile.ZipFile(source) as archive:
        names = [name for name in archive.namelist() if name.endswith(".json")]
        if len(names) != 1:
            raise InputError(f"{source}: holds {len(names)} JSON files, one is needed; unpack it")
        try:
            binary = archive.open(names[0])
        # A password, or a compression that Python doesn't know.
        except (RuntimeError, zipfile.BadZipFile) as error:
            raise InputError(f"{source}: can't be unpacked ({error}); unpack it yourself") from None
        with binary, io.TextIOWrapper(binary, encoding="utf-8") as text:
            yield text


def _entries(stream: TextIO, source: Path) -> Iterator[tuple[str, Any]]:
    """Entries of one large JSON object, without holding more than one of them."""
    decoder, buffer, ended = json.JSONDecoder(), "", False

    def more() -> None:
        nonlocal buffer, ended
        try:
            chunk = stream.read(_CHUNK)
        except UnicodeDecodeError:
            raise InputError(f"{source}: not UTF-8 text; convert the file to UTF-8") from None
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise InputError(f"{source}: can't be read ({error}); the file is damaged") from None
        ended = not chunk
        buffer += chunk

    def decoded(start: int) -> tuple[Any, int]:
        # A value may be cut off by the end of the buffer; doubling keeps the work linear in its length.
        while True:
            try:
                return decoder.raw_decode(buffer, start)
            except RecursionError:
                raise InputError(f"{source}: broken JSON: nested too deeply") from None
            except json.JSONDecodeError as error:
                if ended:
                    raise InputError(f"{source}: broken JSON: {error.msg}") from None
                size = len(buffer)
                while not ended and len(buffer) < 2 * size:
                    more()

    def skip(characters: str) -> str:
        nonlocal buffer
        while True:
            buffer = buffer.lstrip(characters)
            if buffer or ended:
                return buffer[:1]
            more()

    if skip(" \t\r\n\ufeff") != "{":
        raise InputError(f"{source}: a JSON object of dialogues is needed; is this a CrossWOZ split?")
    buffer = buffer[1:]
    while skip(" \t\r\n,") not in ("}", ""):
        key, end = decoded(0)
        buffer = buffer[end:]
        if skip(" \t\r\n") != ":" or not isinstance(key, str):
            raise InputError(f"{source}: broken JSON: a name and a colon are needed")
        buffer = buffer[1:]
        skip(" \t\r\n")
        value, end = decoded(0)
        buffer = buffer[end:]
        yield key, value
    if not buffer:
        raise InputError(f"{source}: broken JSON: the file ends before its last brace")
    buffer = buffer[1:]
    if skip(" \t\r\n"):
        raise InputError(
            f"{source}: broken JSON: something follows the object; one object of dialogues is needed"
        )


def _dialogue(key: str, talk: _Talk, where: str) -> Draft | Skipped:
    messages = talk["messages"]
    if [message["role"] for message in messages] != ["usr", "sys"] * (len(messages) // 2) or not messages:
        return Skipped(where, "user and system don't take turns")
    texts = [message["content"].strip() for message in messages]
    if has_braces(*texts):
        return Skipped(where, "a text holds {...}, which a dialogue file reads as a fact")
    if not all(texts):
        return Skipped(where, "a turn without words")
    facts, unchecked = Facts(), Unchecked()
    domains: set[str] = set()
    turns = []
    for index, (user, system) in enumerate(zip(messages[::2], messages[1::2], strict=True)):
        user_text, reply = user["content"].strip(), system["content"].strip()
        domains |= {act[1] for act in user["dialog_act"] if act[1] in _NAMES}
        turn: dict[str, Any] = {
            "user": _user_text(user_text, user["dialog_act"], index, facts),
            "gold": reply,
        }
        recalls = [name for name, value in facts.values.items() if states(reply, value, whole_words=True)]
        asked = {act[2] for act in user["dialog_act"] if act[0] == "Request"}
        matches = [
            form
            for form in dict.fromkeys(_FORMS[slot] for slot in _FORMS if slot in asked)
            if re.search(form, reply)
        ]
        expect = {"recalls": recalls, "matches": matches}
        turn |= (
            {"expect": {key: value for key, value in expect.items() if value}} if recalls or matches else {}
        )
        known = set(facts.values.values())
        unchecked["values that the system takes from its database"] += sum(
            act[0] in ("Inform", "Recommend") and act[3] not in ("", "none", *known)
            for act in system["dialog_act"]
        )
        turns.append(turn)
    content = {
        "id": f"crosswoz_{key}",
        "locale": "zh",
        "facts": facts.values,
        "tags": ["crosswoz", *sorted(_NAMES[domain] for domain in domains)],
        "turns": turns,
    }
    return Draft(where, content, unchecked)


def _user_text(text: str, acts: list[list[str]], index: int, facts: Facts) -> str:
    spans: list[tuple[int, int, str]] = []
    # Longer values first: 北京京仪大酒店 before 酒店.
    for act, domain, slot, value in sorted(acts, key=lambda act: -len(act[3])):
        start = text.find(value) if act == "Inform" and len(value) >= _SHORTEST_FACT else -1
        end = start + len(value)
        if start < 0 or any(start < until and since < end for since, until, _ in spans):
            continue
        slot = slot.partition("-")[0]
        wanted = f"{_NAMES.get(domain, 'other')}_{_NAMES.get(slot, 'value')}"
        spans.append((start, end, facts.name(wanted, value, index)))
    return template(text, spans)
