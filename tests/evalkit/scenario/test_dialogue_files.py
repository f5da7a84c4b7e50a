"""Dialogue files: strict, with the line of each problem."""

from pathlib import Path

import pytest

from evalkit.errors import InputError
from evalkit.scenario.dialogue_files import read_dialogue_file, read_dialogues

DESIGN_EXAMPLE = """\
id: lost_card_en_003
locale: en
persona: a hurried customer
facts: {name: Maria, amount: 250, balance: 25.0}
tags: [cards, multi_turn]
turns:
  - user: ["Hello, I'm {name}.", "{name} here."]
    gold: Hello {name}, how can I help?
    expect: {intent: greeting, handover: {forbidden: true}, contains: ["hello"], max_ms: 2000}
  - user: Send {amount} euros, I have {balance}.
    gold: I send {amount} euros.
    expect: {slots: {amount: "{amount}"}, matches: ['\\b{amount}\\b', '[a-z]{2,}'], forbidden: [sorry]}
  - user: Who am I? And give me a human.
    gold: You are {name}; a colleague takes over.
    expect: {recalls: [name], handover: {required: true, by_turn: 3}}
never: [password, {matches: '(?i)card number'}, {contains: secret}]
order: [hello, euros]
end_state: {handed_over: true, stated: [name]}
"""

MINIMAL = """\
id: one
facts: {name: Maria}
turns:
  - user: I am {name}.
    gold: Hi {name}.
"""


def write(folder: Path, text: str, name: str = "d.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_file_of_the_design_loads(tmp_path: Path) -> None:
    (source,) = read_dialogue_file(write(tmp_path, DESIGN_EXAMPLE))
    dialogue = source.dialogue
    assert dialogue.handover_window == (2, 2)
    assert dialogue.fill("{name} {amount} {balance} {2}") == "Maria 250 25 {2}"
    assert dialogue.fill_pattern(r"\b{amount}\b[a-z]{2,}").expression == r"\b250\b[a-z]{2,}"
    assert dialogue.turns[1].user == ["Send {amount} euros, I have {balance}."]


def test_several_dialogues_in_one_file_know_their_lines(tmp_path: Path) -> None:
    indented = "\n".join("    " + line for line in MINIMAL.splitlines()).strip()
    text = f"dialogues:\n  - {indented}\n  - {indented.replace('id: one', 'id: two')}\n"
    sources = read_dialogue_file(write(tmp_path, text))
    assert [(source.dialogue.id, source.line) for source in sources] == [("one", 2), ("two", 7)]


def test_dialogues_of_several_files_come_sorted(tmp_path: Path) -> None:
    files = [
        write(tmp_path, MINIMAL, "a.yaml"),
        write(tmp_path, MINIMAL.replace("id: one", "id: a_first"), "b.yaml"),
    ]
    assert [source.dialogue.id for source in read_dialogues(files)] == ["a_first", "one"]


def test_an_id_that_is_used_twice_names_both_places(tmp_path: Path) -> None:
    files = [write(tmp_path, MINIMAL, "a.yaml"), write(tmp_path, "# again\n" + MINIMAL, "b.yaml")]
    with pytest.raises(InputError, match=r"b\.yaml:2: id: 'one' is used already at .*a\.yaml:1; give each"):
        read_dialogues(files)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "I am {name}.",
            "I am {nmae}.",
            r"d\.yaml:4: turns\.0\.user\.0: unknown fact \{nmae\}; .* facts: name",
        ),
        ("Hi {name}.", "Hi {x}.", r"d\.yaml:5: turns\.0\.gold: unknown fact \{x\}"),
        ("id: one", "id: one\nid: two", r"d\.yaml:2: id: key given twice"),
        ("id: one", "idd: one", r"d\.yaml:1: idd: unknown key"),
        ("id: one\n", "", r"d\.yaml:1: id: is required"),
        ("id: one", "id: a/b", r"d\.yaml:1: id: "),
        ("turns:", "turns: [", r"broken YAML"),
        ("gold: Hi {name}.", "gold: ''", r"d\.yaml:5: turns\.0\.gold: "),
        ("user: I am {name}.", "user: []", r"d\.yaml:4: turns\.0\.user: "),
        (
            "user: I am {name}.",
            "user: ['I am {name}.', Hello.]",
            r"d\.yaml:4: turns\.0\.user\.1: states other facts",
        ),
        (
            "user: I am {name}.",
            "user: ['I am {name}.', 'I am {name}.']",
            r"d\.yaml:4: turns\.0\.user\.1: stands there already",
        ),
        ("{name: Maria}", "{name: [1]}", r"d\.yaml:2: facts\.name"),
        ("{name: Maria}", "{name: true}", r"d\.yaml:2: facts\.name"),
        ("id: one", "id: one\nlocale: fr", r"d\.yaml:2: locale: .*'en' or 'zh'"),
        (
            "id: one",
            "id: one\nnever: [{matches: '('}]",
            r"d\.yaml:2: never\.0\.matches: broken regular expression",
        ),
        ("id: one", "id: one\nnever: [{}]", r"d\.yaml:2: never\.0: give exactly one of contains and matches"),
        (
            "id: one",
            "id: one\nend_state: {stated: [x]}",
            r"d\.yaml:2: end_state\.stated\.0: unknown fact 'x'",
        ),
    ],
)
def test_problems_name_file_line_and_field(tmp_path: Path, old: str, new: str, problem: str) -> None:
    assert old in MINIMAL
    with pytest.raises(InputError, match=problem):
        read_dialogues([write(tmp_path, MINIMAL.replace(old, new, 1))])


@pytest.mark.parametrize(
    ("expect", "problem"),
    [
        ("{matches: ['[']}", r"d\.yaml:6: turns\.0\.expect\.matches\.0: broken regular expression '\['"),
        ("{recalls: [other]}", r"d\.yaml:6: turns\.0\.expect\.recalls\.0: unknown fact 'other'"),
        ("{recalls: [amount]}", r"recalls\.0: no user turn up to here states \{amount\}"),
        ("{handover: {}}", r"turns\.0\.expect\.handover: give exactly one of"),
        ("{handover: {required: true, forbidden: true}}", r"give exactly one of"),
        ("{handover: {required: false}}", r"handover\.required: is true, or left out \(got false\)"),
        ("{handover: {forbidden: true, by_turn: 1}}", r"by_turn goes with `required: true`"),
        ("{handover: {required: true, by_turn: 2}}", r"handover\.by_turn: must be a turn from 1 to 1"),
        ("{max_ms: 0}", r"turns\.0\.expect\.max_ms: "),
        ("{max_ms: true}", r"turns\.0\.expect\.max_ms: .*number \(got true\)"),
        ("{max_ms: '5'}", r"turns\.0\.expect\.max_ms: .*number"),
        (
            "{handover: {required: 1}}",
            r"turns\.0\.expect\.handover\.required: is true, or left out \(got 1\)",
        ),
        ("{handover: {required: true, by_turn: true}}", r"handover\.by_turn: .*integer \(got true\)"),
        ("{contains: hello}", r"turns\.0\.expect\.contains: .*list"),
        ("{intents: x}", r"turns\.0\.expect\.intents: unknown key"),
    ],
)
def test_problems_of_expectations(tmp_path: Path, expect: str, problem: str) -> None:
    text = MINIMAL.replace("{name: Maria}", "{name: Maria, amount: 5}") + f"    expect: {expect}\n"
    with pytest.raises(InputError, match=problem):
        read_dialogues([write(tmp_path, text)])


def test_turns_after_a_required_handover_can_not_be_played(tmp_path: Path) -> None:
    text = MINIMAL + "    expect: {handover: {required: true}}\n  - user: Still there?\n    gold: Yes.\n"
    with pytest.raises(
        InputError, match=r"d\.yaml:7: turns\.1: comes after the hand-over required by turn 1"
    ):
        read_dialogues([write(tmp_path, text)])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"a: b\0c", "binary"),
        (b"- 1\n", "mapping"),
        (b"a: *x\n", "alias"),
    ],
)
def test_files_that_are_no_yaml_mapping(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "d.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=problem):
        read_dialogues([path])


def test_a_time_limit_without_an_end_is_refused(tmp_path: Path) -> None:
    text = DESIGN_EXAMPLE.replace("max_ms: 2000", "max_ms: .inf")
    with pytest.raises(InputError, match=r"d.yaml:9: turns.0.expect.max_ms: .*finite"):
        read_dialogue_file(write(tmp_path, text))
